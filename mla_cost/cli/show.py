"""`mla-cost show NAME`: everything known of a model or a device."""

from __future__ import annotations

from typing import Annotated, Literal

import typer


def show(
    name: Annotated[str, typer.Argument(help="A model or a device of the catalogue, or the path of its file.")],
    output: Annotated[Literal["table", "json"], typer.Option("--format", help="How to print it.")] = "table",
) -> None:
    """Show everything known of a model or a device: every figure, its source, and whether it is verified."""
    from mla_cost.cli import catalogue

    catalogue.show(name, output)
