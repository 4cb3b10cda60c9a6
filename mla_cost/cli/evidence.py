"""`mla-cost evidence`: published figures beside predictions."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

FORMATS = ("table", "json", "markdown")


def evidence(
    output: Annotated[str, typer.Option("--format", metavar="table|json|markdown", help="How to print it.")] = "table",
    executor: Annotated[
        bool,
        typer.Option("--executor", help="Also run the forms on real ranks, for claims about numbers (needs torch)."),
    ] = False,
    no_notes: Annotated[bool, typer.Option("--no-notes", help="Leave out what stands below the table.")] = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Print nothing: the exit code says whether it could be replayed.")
    ] = False,
    only: Annotated[
        str | None,
        typer.Option(metavar="SOURCE", help="The rows of one source, as time_runs, whose plot sets times apart."),
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option("--plot", metavar="FILE.png|svg", help="Draw published figures against predicted ones."),
    ] = None,
) -> None:
    """Replay published figures and say what matches, what differs and why."""
    from mla_cost.checks.evidence import evidence as replayed
    from mla_cost.cli import progress

    _require(output, only=only is not None, no_notes=no_notes, quiet=quiet)
    if plot is not None:
        from mla_cost.cli import plotting

        plotting.check(plot)
    with progress.shown("published figures") as watch:
        found = replayed(executor, watch, () if only is None else (only,))
        page = found.listed() if output == "table" or only else found.to_dict()
    if quiet:
        return
    _print(page, output, notes=not no_notes)
    if plot is not None:
        _draw(page["rows"], plot, only)


def _require(output: str, *, only: bool, no_notes: bool, quiet: bool) -> None:
    """Refuse what has no effect."""
    from mla_cost.cli.flags import require_effect
    from mla_cost.errors import InputError

    if output not in FORMATS:
        raise InputError("unknown format", field="--format", value=output, allowed=", ".join(FORMATS))
    require_effect("--no-notes", no_notes and output != "table", f"--format {output}")
    require_effect("--no-notes", no_notes and quiet, "--quiet")
    require_effect("--only", only and output == "markdown", "--format markdown")
    require_effect("--quiet", quiet and output != "table", f"--format {output}")


def _print(page: Any, output: str, *, notes: bool) -> None:
    from mla_cost.views import evidence as view

    if output == "table":
        view.show(page, notes=notes)
    else:
        sys.stdout.write(json.dumps(page, indent=2) + "\n" if output == "json" else view.markdown(page))


def _draw(rows: Any, path: Path, only: str | None) -> None:
    from mla_cost.cli import plotting
    from mla_cost.views.evidence import TIMES
    from mla_cost.views.studies import draw_published, draw_times, pairs_of, time_points_of

    if only == TIMES:
        points = time_points_of(rows)
        with plotting.writing(path):
            draw_times(path, f"{len(points)} published times of training and what is predicted for them", points)
        return
    pairs = pairs_of(rows)
    with plotting.writing(path):
        draw_published(path, f"{len(pairs)} published figures and what is predicted for them", pairs)
