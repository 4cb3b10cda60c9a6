"""`mla-cost plans`: the ready plans."""

from __future__ import annotations

from typing import Annotated

import typer


def plans(
    output: Annotated[str, typer.Option("--format", metavar="table|json", help="How to print it.")] = "table",
) -> None:
    """List the ready plans; `mla-cost plan NAME` prices one, and flags override what it says."""
    from mla_cost.cli import catalogue

    catalogue.plans(output)
