"""`mla-cost models`: the catalogue of models."""

from __future__ import annotations

from typing import Annotated

import typer


def models(
    output: Annotated[str, typer.Option("--format", metavar="table|json", help="How to print it.")] = "table",
) -> None:
    """List the models of the catalogue, with what is verified."""
    from mla_cost.cli import catalogue

    catalogue.models(output)
