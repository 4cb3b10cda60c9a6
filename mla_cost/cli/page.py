"""`mla-cost page`: the calculator of a model as one page of HTML."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

Scope = Literal["attention", "model"]


def page(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A model of the catalogue, or the path of a file.")],
    scope: Annotated[
        Scope, typer.Option(help="One attention block with boxes for its widths, or the whole model.")
    ] = "attention",
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE.html", help="Write the page to a file; else it is printed."),
    ] = None,
) -> None:
    """Write a calculator of a model: every form and device, exact to the byte, in one file without network."""
    from mla_cost.cli import progress
    from mla_cost.cli.import_ import write
    from mla_cost.cli.report import check
    from mla_cost.inputs import catalog
    from mla_cost.studies.calculator import calculator
    from mla_cost.studies.sweep.result import extra
    from mla_cost.views.page import page as written

    check(output)
    extra("jinja2", "report")
    from mla_cost.studies.whole_calculator import whole_calculator

    with progress.shown("page"):
        held = {"attention": calculator, "model": whole_calculator}[scope](catalog.model(model), model)
    text = written(held)
    if output is None:
        sys.stdout.write(text)
    else:
        write(output, text)
