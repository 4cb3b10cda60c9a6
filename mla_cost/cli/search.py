"""`mla-cost search`: every legal plan for so many devices, ranked."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import typer

from mla_cost.cli.flags import Given, command
from mla_cost.inputs.table import TABLE


@command
def search(given: Given) -> None:
    """Price every legal plan for a number of devices and rank those that fit."""
    import gc

    from mla_cost.errors import InputError
    from mla_cost.studies.search.options import Options

    gc.enable()  # unlike a plan this makes millions of numbers
    if given["plot"] is not None:
        from mla_cost.cli import plotting

        plotting.check(given["plot"])
    flags, assigned = given.flags(), given.assigned()
    axes = _axes(flags) | _axes(assigned)
    settings = given.settings(flags, assigned)
    found = _search(settings, axes, {name: given[name] for name in Options.model_fields})
    if given["plot"] is not None and found.results:
        _draw(found, given["plot"])
    if not given["quiet"]:
        _print(found, given["output"], pareto=given["pareto"], notes=not given["no_notes"])
    if found.refused:
        raise InputError(found.refused)
    raise typer.Exit(1 if given["require_fit"] and not found.results else 0)


def _axes(stated: dict[str, Any]) -> dict[str, Any]:
    """What is gone over, taken out of what was stated.

    Raises:
        InputError: what follows from the rest.

    """
    from mla_cost.errors import InputError

    how = {name: TABLE[name].search for name in stated if name in TABLE}
    for name, search in how.items():
        if search == "follows" and stated[name] is not None:
            raise InputError("follows from what is searched", field=name)
    taken = {name: stated.pop(name) for name, search in how.items() if search in {"degree", "choice"}}
    return {name: value for name, value in taken.items() if value is not None}


def _search(settings: Any, axes: dict[str, Any], options: dict[str, Any]) -> Any:
    from mla_cost.cli import progress
    from mla_cost.studies.search import of

    with progress.shown("candidates") as watch:
        return of(settings, axes, options, watch)


def _draw(found: Any, path: Path) -> None:
    from mla_cost.cli import plotting
    from mla_cost.views.studies import draw_search, points_of

    inputs, told = found.inputs, found.to_dict()
    title = f"{inputs['model']} on {inputs['device']}: layouts that fit, of {found.candidates:,} candidates"
    with plotting.writing(path):
        draw_search(path, title, points_of(told), found.results[0].usable_bytes)


def _front(found: Any) -> str:
    return "time_pareto" if found.time_pareto else "pareto"


def _print(found: Any, output: str, *, pareto: bool, notes: bool) -> None:
    """The answer in the format asked for; where nothing is legal, the message says it all."""
    if output == "json":
        sys.stdout.write(found.to_json() + "\n")
    elif output == "csv":
        from mla_cost.studies.search import Candidate
        from mla_cost.views import search_table

        rows = found.to_dict()[_front(found) if pareto else "results"]
        sys.stdout.write(search_table.csv_text(Candidate._fields, rows))
    elif not found.refused:
        from mla_cost.views import search_table

        search_table.show(found.to_dict(), pareto=pareto, notes=notes)
