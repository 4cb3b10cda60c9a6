"""`mla-cost sweep`: any field of a plan over ranges, lists and globs."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from mla_cost.cli.flags import Given, command
from mla_cost.inputs.table import TABLE

if TYPE_CHECKING:
    from mla_cost.studies.sweep import Sweep

TABLE_ROWS = 60
MARKDOWN_ROWS = 10_000


@command
def sweep(given: Given) -> None:
    """Price every form at every setting of a grid. Refused combinations are rows with their reason."""
    import gc

    from mla_cost.errors import InputError
    from mla_cost.views.parts import assumed

    gc.enable()  # unlike a plan this may run for hours
    output, plot = given["save"], given["plot"]
    quiet = given["quiet"]
    if given["resume"] and output is None:
        raise InputError("there is nothing to resume without --output", field="--resume")
    study = _study(given, axes_of(given["over"]))
    if not quiet and (output is not None or plot is not None or given["output"] not in {None, "table", "json"}):
        for line in assumed({"assumed": study.assumed}):
            sys.stderr.write(f"mla-cost: {line}\n")  # rows have no place for it
    answered = 1
    if given["commands"]:
        sys.stdout.writelines(f"{study.command(index)}\n" for index in range(len(study)))
    elif output is not None:
        answered = _save(study, output, resume=given["resume"], quiet=quiet)
    elif quiet and plot is None:
        answered = _answered(study)
    elif plot is None or given["output"] is not None:
        answered = _print(study, given["output"] or "table", notes=not given["no_notes"])
    if plot is not None:
        _draw(study, plot, quiet=quiet)
    if not answered:
        raise InputError(f"no row has an answer; the first says: {study.reason_of(0)}")


def axes_of(given: Iterable[str] | None) -> dict[str, str]:
    """What --over says, by field."""
    from mla_cost.errors import InputError, shown

    found: dict[str, str] = {}
    for text in given or ():
        field, equals, values = text.partition("=")
        field = field.strip().replace("-", "_") if "." not in field else field.strip()
        if not equals or not field or not values.strip():
            raise InputError(f"expected FIELD=VALUES, read {shown(text)}", field="--over")
        if field in found:
            raise InputError("is gone over twice", field=f"--over {field}")
        found[field] = values
    if not found:
        raise InputError("name a field to go over, e.g. --over seq_len=4096..131072*2", field="--over")
    return found


def _study(given: Given, over: dict[str, str]) -> Sweep:
    from mla_cost.studies.sweep import of
    from mla_cost.studies.sweep.axes import expand, is_glob

    flags = given.flags()
    _require_once(given, over)
    if is_glob(flags["model"]):
        over.setdefault("model", flags["model"])
        flags["model"] = None
    for name in ("device", "form"):
        if flags[name] is not None and flags[name] != ["all"]:
            flags[name] = expand(name, flags[name])
    return of(given.settings(flags), over, timed=given["time"])


def _require_once(given: Given, over: dict[str, str]) -> None:
    """Refuse a field that is gone over and stated as well: a plan file may state it, the command line does not."""
    from mla_cost.errors import InputError

    assigned = given.assigned()
    for field in over:
        beside = "--set" if field in assigned else TABLE[field].flags[0] if given.stated(field) else None
        if beside is not None:
            raise InputError(
                f"is gone over, and {beside} states it too; leave one of the two out", field=f"--over {field}"
            )


def _save(study: Sweep, output: Path, *, resume: bool, quiet: bool) -> int:
    from mla_cost.cli import interrupt
    from mla_cost.studies.sweep.output import save

    with _progress(len(study), quiet=quiet) as progress:
        try:
            with interrupt.raised():  # the file is to be closed first
                answered = save(study, output, resume, progress)
        except KeyboardInterrupt:
            sys.stderr.write(f"mla-cost: stopped; --resume continues {output}\n")
            raise typer.Exit(130) from None
    if not quiet:
        _wrote(output, f"{len(study):,} rows, {answered:,} of them with an answer")
    return answered


def _answered(study: Sweep) -> int:
    """How many rows have an answer, priced up to the first chunk that has one."""
    from mla_cost.batch.codes import ILLEGAL

    return next((found for chunk in study.chunks() if (found := int((chunk.columns["status"] != ILLEGAL).sum()))), 0)


def _wrote(path: Path, what: str) -> None:
    """Where the answer went, beside it: on stderr, so that a pipe has rows only."""
    sys.stderr.write(f"mla-cost: wrote {path}: {what}\n")


@contextmanager
def _progress(points: int, *, quiet: bool) -> Iterator[Callable[[int], None]]:
    """A bar with rate and time left, on a terminal's stderr only."""
    if quiet or not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[rate]} points/s"), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("", total=points, rate="-")

        def at(done: int) -> None:
            speed = bar.tasks[0].speed
            bar.update(task, completed=done, rate=f"{speed:,.0f}" if speed else "-")

        yield at


def _print(study: Sweep, shape: str, *, notes: bool) -> int:
    from mla_cost.views import rows as view

    if shape in {"table", "markdown"}:
        most = TABLE_ROWS if shape == "table" else MARKDOWN_ROWS
        rows = _first_rows(study, most)
        if shape == "table":
            of_model = study.grid.settings.scope == "model"
            sent = "in one optimizer step by the stage that sends most" if of_model else "in forward and backward"
            view.show(_varying(study, rows), rows, len(study) - len(rows), sent, study.assumed, notes=notes)
        else:
            sys.stdout.write(view.markdown_text(study.columns, rows))
        return sum(row["status"] != "illegal" for row in rows) or len(study) > len(rows)
    return _stream(study, shape)


def _first_rows(study: Sweep, most: int) -> list[dict[str, Any]]:
    return [study[index] for index in range(min(most, len(study)))]


def _varying(study: Sweep, rows: list[dict[str, Any]]) -> list[str]:
    """The settings that are gone over, then every other word or setting in which the rows differ."""
    from mla_cost.results.columns import VERDICT, figures

    told = {*VERDICT, *(figure.name for figure in figures(study.grid.settings.scope, timed=True))}
    settings = [axis.name for axis in study.grid.axes if axis.name not in study.names or len(axis.values) > 1]
    names = [name for name in study.columns if name not in told and name not in settings]
    return [*settings, *(name for name in names if name == "form" or len({row[name] for row in rows}) > 1)]


def _stream(study: Sweep, shape: str) -> int:
    from mla_cost.batch.codes import ILLEGAL
    from mla_cost.studies.sweep import output

    answered = 0
    write = sys.stdout.write
    if shape == "csv":
        write(output.csv_head(study))
    elif shape == "json":
        write(f'{{"schema": "mla-cost/sweep/1", "assumed": {json.dumps(study.assumed)}, "rows": [')
    comma = ""
    sys.stdout.flush()  # what cannot be written to is reported before anything is priced
    for chunk in study.chunks():
        answered += int((chunk.columns["status"] != ILLEGAL).sum())
        if shape == "csv":
            write(output.csv_text(study, chunk))
            continue
        for line in output.json_lines(study, chunk):
            write(f"{line}\n" if shape == "jsonl" else f"{comma}\n{line}")
            comma = ","
    if shape == "json":
        write("\n]}\n")
    return answered


def _draw(study: Sweep, path: Path, *, quiet: bool) -> None:
    from mla_cost.cli import progress
    from mla_cost.errors import InputError
    from mla_cost.studies.sweep.frontier import frontier, kernels_of
    from mla_cost.studies.sweep.result import extra
    from mla_cost.views.frontier import Panel, draw

    if path.suffix.lower() not in {".png", ".svg"}:
        raise InputError("the file name must say what it shall be", file=str(path), allowed=".png, .svg")
    with progress.shown(f"{len(study):,} points"):
        seq_lens, sps, panels = frontier(study)
    extra("matplotlib", "plot")
    model = " and ".join(dict.fromkeys(model.title for model in study.grid.models))
    devices = study.names["device"]
    where = f" on {devices[0]}" if len(devices) == 1 and devices[0] != "none" else ""
    kernels = " or ".join(kernels_of(study))
    title = f"{model}: {_priced(study)}{where}, kernel {kernels}; numbers are GiB required on one rank"
    try:
        draw(path, title, seq_lens, sps, [Panel(*panel) for panel in panels])
    except OSError as error:
        raise InputError(f"cannot write it: {error.strerror}", file=str(path)) from None
    if not quiet:
        _wrote(path, f"{len(panels)} panel{'s' * (len(panels) > 1)} of {len(study):,} rows")


def _priced(study: Sweep) -> str:
    """What a picture is about, in words."""
    settings = study.grid.settings
    if settings.scope == "model":
        return "the whole model"
    return "one attention block" if settings.layers == 1 else f"{settings.layers} attention blocks"
