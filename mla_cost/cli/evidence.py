"""`mla-cost evidence`: published figures beside predictions."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

FORMATS = ("table", "json", "markdown")


def evidence(
    output: Annotated[str, typer.Option("--format", metavar="table|json|markdown", help="How to print it.")] = "table",
    executor: Annotated[
        bool,
        typer.Option("--executor", help="Also run the forms on real ranks, for claims about numbers (needs torch)."),
    ] = False,
) -> None:
    """Replay published figures and say what matches, what differs and why."""
    from mla_cost.checks.evidence import evidence as replayed
    from mla_cost.errors import InputError

    if output not in FORMATS:
        raise InputError("unknown format", field="--format", value=output, allowed=", ".join(FORMATS))
    found = replayed(executor)
    if output == "json":
        sys.stdout.write(found.to_json() + "\n")
        return
    from mla_cost.views import evidence as view

    sys.stdout.write(view.markdown(found.to_dict()) if output == "markdown" else view.text(found.to_dict()))
