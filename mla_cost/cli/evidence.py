"""`mla-cost evidence`: published figures beside predictions."""

from __future__ import annotations

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
    plot: Annotated[
        Path | None,
        typer.Option("--plot", metavar="FILE.png|svg", help="Draw published figures against predicted ones."),
    ] = None,
) -> None:
    """Replay published figures and say what matches, what differs and why."""
    from mla_cost.checks.evidence import evidence as replayed
    from mla_cost.cli import progress
    from mla_cost.cli.flags import require_effect
    from mla_cost.errors import InputError

    if output not in FORMATS:
        raise InputError("unknown format", field="--format", value=output, allowed=", ".join(FORMATS))
    require_effect("--no-notes", no_notes and output != "table", f"--format {output}")
    require_effect("--no-notes", no_notes and quiet, "--quiet")
    require_effect("--quiet", quiet and output != "table", f"--format {output}")
    if plot is not None:
        from mla_cost.cli import plotting

        plotting.check(plot)
    with progress.shown("published figures") as watch:
        found = replayed(executor, watch)
        page = found.listed() if output == "table" else found.to_dict()
    if quiet:
        return
    _print(found, page, output, notes=not no_notes)
    if plot is not None:
        _draw(page["rows"], plot)


def _print(found: Any, page: Any, output: str, *, notes: bool) -> None:
    from mla_cost.views import evidence as view

    if output == "table":
        view.show(page, notes=notes)
    else:
        sys.stdout.write(found.to_json() + "\n" if output == "json" else view.markdown(page))


def _draw(rows: Any, path: Path) -> None:
    from mla_cost.cli import plotting
    from mla_cost.views.studies import draw_published, pairs_of

    pairs = pairs_of(rows)
    with plotting.writing(path):
        draw_published(path, f"{len(pairs)} published figures and what is predicted for them", pairs)
