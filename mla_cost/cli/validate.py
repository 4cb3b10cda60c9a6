"""`mla-cost validate`: the model against the torch reference executor."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from mla_cost.checks.validation.report import Report


def validate(
    quick: Annotated[bool, typer.Option("--quick", help="A small grid, under 40 seconds.")] = False,
    full: Annotated[bool, typer.Option("--full", help="The full cross product: some tens of minutes.")] = False,
    ranks: Annotated[
        int | None,
        typer.Option(metavar="0|1|2|4|8", help="Processes to start over gloo: 8, or 4 with --quick."),
    ] = None,
    compare: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Records of `python -m mla_cost.checks.reference` to compare instead."),
    ] = None,
    timed: Annotated[
        bool,
        typer.Option("--time", help="Times in place of bytes: measure this machine, predict settings and run them."),
    ] = False,
    output: Annotated[str, typer.Option("--format", metavar="table|json", help="How to print the report.")] = "table",
    no_notes: Annotated[bool, typer.Option("--no-notes", help="The counts alone.")] = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Print nothing: the exit code says whether all agrees.")
    ] = False,
) -> None:
    """Run the forms in torch and compare, byte by byte, what the model says of them. Exits with 1 on disagreement."""
    from mla_cost.cli.flags import require_effect
    from mla_cost.errors import InputError

    _require_format(output, no_notes=no_notes, quiet=quiet)
    if quick and full:
        raise InputError("--quick and --full are two sizes of one grid: choose one")
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # torch's profiler tells of its own starts and stops
    if timed:
        for flag, given in (("--full", full), ("--compare", compare is not None), ("--ranks", ranks is not None)):
            require_effect(flag, given, "--time")
        raise typer.Exit(_timed(quick, output, quiet, notes=not no_notes))
    from mla_cost.checks.validate import validate as compared

    with _progress() as watch:
        report = compared("quick" if quick else "full" if full else "default", ranks, compare, watch)
    if not quiet:
        _print(report, output, notes=not no_notes)
    raise typer.Exit(1 if report.disagreements else 0)


def _require_format(output: str, *, no_notes: bool, quiet: bool) -> None:
    """Refuse a format that is none, and what has no effect under one."""
    from mla_cost.cli.flags import require_effect
    from mla_cost.errors import InputError

    if output not in {"table", "json"}:
        raise InputError("unknown format", field="--format", value=output, allowed="table, json")
    require_effect("--no-notes", no_notes and quiet, "--quiet")
    for flag, given in (("--no-notes", no_notes), ("--quiet", quiet)):
        require_effect(flag, given and output != "table", f"--format {output}")


def _timed(quick: bool, output: str, quiet: bool, *, notes: bool) -> int:
    """The exit code of a comparison of times, which is printed."""
    from importlib.util import find_spec

    from mla_cost.checks.validate import INSTALL
    from mla_cost.errors import InputError

    if find_spec("torch") is None:
        raise InputError(INSTALL)
    from mla_cost.checks.validation import time_table, times

    report = times.validate_time(quick=quick)
    if output == "json":
        sys.stdout.write(report.to_json() + "\n")
    elif not quiet:
        time_table.show(report, notes=notes)
    return 0 if report.within else 1


def _print(report: Report, output: str, *, notes: bool) -> None:
    if output == "json":
        sys.stdout.write(report.to_json() + "\n")
        return
    from mla_cost.checks.validation import table

    table.show(report, notes=notes)


@contextmanager
def _progress() -> Iterator[Callable[[str, int], None]]:
    """A bar per stage on stderr, in a terminal only."""
    if not sys.stderr.isatty():
        yield lambda _stage, _left: None
        return
    from rich.console import Console
    from rich.progress import Progress, TaskID

    with Progress(console=Console(stderr=True), transient=True) as progress:
        bars: dict[str, TaskID] = {}

        def watch(stage: str, left: int) -> None:
            if stage not in bars:
                bars[stage] = progress.add_task(stage, total=None)
            elif progress.tasks[bars[stage]].total is None:
                progress.update(bars[stage], total=left)
            else:
                progress.advance(bars[stage])

        yield watch
