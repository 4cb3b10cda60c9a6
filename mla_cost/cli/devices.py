"""`mla-cost devices`: the catalogue of devices."""

from __future__ import annotations

from typing import Annotated

import typer


def devices(
    output: Annotated[str, typer.Option("--format", metavar="table|json", help="How to print it.")] = "table",
) -> None:
    """List the devices of the catalogue, with what is verified."""
    from mla_cost.cli import catalogue

    catalogue.devices(output)
