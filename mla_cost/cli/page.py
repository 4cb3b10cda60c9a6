"""`mla-cost page`: the calculator of a model as one page of HTML."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer


def page(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A model of the catalogue, or the path of a file.")],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE.html", help="Write the page to a file; else it is printed."),
    ] = None,
) -> None:
    """Write a calculator of a model's attention block: every form and device, exact, in one file without network."""
    from mla_cost.cli.import_ import write
    from mla_cost.cli.report import check
    from mla_cost.inputs import catalog
    from mla_cost.studies.calculator import calculator
    from mla_cost.studies.sweep.result import extra
    from mla_cost.views.page import page as written

    check(output)
    extra("jinja2", "report")
    text = written(calculator(catalog.model(model), model))
    if output is None:
        sys.stdout.write(text)
    else:
        write(output, text)
