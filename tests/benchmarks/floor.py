"""The least a command of this kind costs: one typer command that imports what mla-cost imports and prints one table."""

from __future__ import annotations

import pydantic
import typer
import yaml
from rich.console import Console
from rich.table import Table

app = typer.Typer()


@app.command()
def main() -> None:
    """Print the versions of the libraries."""
    table = Table("library", "version")
    table.add_row("pydantic", pydantic.VERSION)
    table.add_row("typer", typer.__version__)
    table.add_row("yaml", yaml.__version__)
    Console().print(table)


if __name__ == "__main__":
    app()
