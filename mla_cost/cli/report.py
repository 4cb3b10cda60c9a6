"""`mla-cost report`: a plan as one page of HTML."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from mla_cost.cli.flags import Given, command


@command
def report(given: Given) -> None:
    """Write a plan as one page of HTML: verdict, memory, communication, what to change, sources and formulas.

    One file that needs no network and no script. It says what `plan --levers` says of the same flags.
    """
    from mla_cost.cli.import_ import write
    from mla_cost.studies.sweep.result import extra

    settings = given.settings()
    check(given["save"])
    extra("jinja2", "report")
    text = page_of(settings)
    if given["save"] is None:
        sys.stdout.write(text)
    else:
        write(given["save"], text)


def check(path: Path | None) -> None:
    """Whether the file's name says that it is a page.

    Raises:
        InputError: it does not.

    """
    from mla_cost.errors import InputError

    if path is not None and path.suffix.lower() not in {".html", ".htm"}:
        raise InputError("the file name must say that it is a page", field="--output", value=str(path), allowed=".html")


def page_of(settings: Any) -> str:
    """The page of a plan.

    Raises:
        InputError: bad input, or no form has numbers.

    """
    from mla_cost import api
    from mla_cost.cli import plotting, progress
    from mla_cost.cli.plan import why_refused
    from mla_cost.errors import InputError
    from mla_cost.inputs.command import command_of
    from mla_cost.views.report import Written
    from mla_cost.views.report import report as written

    with progress.shown("report"):
        answer = api.with_levers(settings) if settings.device else api.answer(settings)
        reasons = why_refused(answer)
        if reasons:
            raise InputError(reasons)
        drawn = api.pictures(settings)
        timelines: dict[Any, Any] = {(it.device, it.form): [plotting.timeline_of(it)] for it in drawn}
        formulas: dict[Any, list[Written]] = {}
        for row, found in api.formulas_of(settings, answer):
            formulas.setdefault((row.device, row.form), []).append(Written(found.record(), found.mathml()))
    return written(answer, command_of(settings), timelines, formulas)
