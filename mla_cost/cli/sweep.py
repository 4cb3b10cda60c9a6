"""`mla-cost sweep`: any field of a plan over ranges, lists and globs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mla_cost.cli import helps

if TYPE_CHECKING:
    from mla_cost.studies.sweep import Sweep

Names = list[str] | None
FORMATS = ("table", "csv", "jsonl", "json", "markdown")
TABLE_ROWS = 60
MARKDOWN_ROWS = 10_000


def sweep(
    file: Annotated[
        Path | None, typer.Argument(metavar="[PLAN]", help="A plan file or ready plan; flags override it.")
    ] = None,
    over: Annotated[
        Names,
        typer.Option(
            metavar="FIELD=VALUES",
            help="A field to go over: seq_len=4096..131072*2 (a..b*FACTOR or a..b+STEP), sp=1,2,4, device='910b*', "
            "form=all, dims.heads=64,128. Repeat it.",
        ),
    ] = None,
    model: Annotated[str | None, typer.Option(help="A model of the catalogue, a model YAML or a config.json.")] = None,
    device: Annotated[
        Names, typer.Option(help="Devices, repeated or separated by commas; `none` for no verdict.")
    ] = None,
    form: Annotated[Names, typer.Option(help="Forms, repeated or separated by commas; `all` by default.")] = None,
    kernel: Annotated[str | None, typer.Option(help="How attention is executed.")] = None,
    seq_len: Annotated[int | None, typer.Option(help="Sequence length, all ranks together.")] = None,
    sp: Annotated[
        int | None, typer.Option("--sp", "--cp", "--context-parallel-size", help="Ranks that share one sequence.")
    ] = None,
    tp: Annotated[int | None, typer.Option(help="Tensor-parallel ranks.")] = None,
    pp: Annotated[int | None, typer.Option(help="Pipeline stages.")] = None,
    ep: Annotated[int | None, typer.Option(help="Ranks that share the experts.")] = None,
    dp: Annotated[int | None, typer.Option(help="Data-parallel ranks.")] = None,
    etp: Annotated[int | None, typer.Option(help="Ranks that share each expert.")] = None,
    micro_batch: Annotated[int | None, typer.Option(help="Sequences in a micro-batch.")] = None,
    micro_batches: Annotated[int | None, typer.Option(help="Micro-batches of a step.")] = None,
    mtp: Annotated[int | None, typer.Option(help=helps.MTP)] = None,
    sharding: Annotated[
        str | None, typer.Option(metavar="ddp|distributed|zero1|zero2", help="What data-parallel ranks share.")
    ] = None,
    remat: Annotated[str | None, typer.Option(help="What backward runs again: none, full, core_attn, ...")] = None,
    profile: Annotated[
        str | None, typer.Option(metavar="reference|megatron", help="Whose implementation runs.")
    ] = None,
    layers: Annotated[int | None, typer.Option(help="Equal blocks in a row (scope attention).")] = None,
    other_memory: Annotated[
        str | None, typer.Option(metavar="BYTES", help="Memory beside this scope, e.g. 2GiB.")
    ] = None,
    reserve: Annotated[Names, typer.Option(metavar="ITEM=BYTES", help="Override a reserve item of the device.")] = None,
    assign: Annotated[
        Names, typer.Option("--set", metavar="FIELD=VALUE", help="Any field of a plan that stays the same.")
    ] = None,
    scope: Annotated[
        str | None, typer.Option(metavar="model|attention", help="What is priced; model by default.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option(metavar="FILE.csv|.jsonl|.parquet", help="Write every row to a file.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue an --output that was cut.")] = False,
    shape: Annotated[
        str | None, typer.Option("--format", metavar="table|csv|jsonl|json|markdown", help="How to print the rows.")
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE.png|.svg", help="Draw verdicts over seq_len and sp, a panel per form.")
    ] = None,
) -> None:
    """Price every form at every setting of a grid. Refused combinations are rows with their reason."""
    import gc

    from mla_cost.errors import InputError
    from mla_cost.inputs import plan_files

    gc.enable()  # unlike a plan this may run for hours
    if shape is not None and shape not in FORMATS:
        raise InputError("unknown format", field="--format", value=shape, allowed=", ".join(FORMATS))
    if resume and output is None:
        raise InputError("there is nothing to resume without --output", field="--resume")
    flags: dict[str, Any] = {
        "model": model,
        "device": plan_files.names(device),
        "form": plan_files.names(form),
        "kernel": kernel,
        "seq_len": seq_len,
        "sp": sp,
        "tp": tp,
        "pp": pp,
        "ep": ep,
        "dp": dp,
        "etp": etp,
        "micro_batch": micro_batch,
        "micro_batches": micro_batches,
        "mtp": mtp,
        "sharding": sharding,
        "remat": remat,
        "profile": profile,
        "layers": layers,
        "other_memory": other_memory,
        "scope": scope,
    }
    assigned, reserved = plan_files.assignments(assign), plan_files.assignments(reserve, "reserve")
    study = _study(file, flags, assigned, reserved, _axes(over))
    if output is not None:
        answered = _save(study, output, resume)
    elif plot is None or shape is not None:
        answered = _print(study, shape or "table")
    else:
        answered = 1
    if plot is not None:
        _draw(study, plot)
    if not answered:
        raise InputError(f"no row has an answer; the first says: {study.reason_of(0)}")


def _axes(given: Names) -> dict[str, str]:
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


def _study(
    file: Path | None, flags: dict[str, Any], assigned: dict[str, Any], reserve: dict[str, Any], over: dict[str, Any]
) -> Sweep:
    from mla_cost.inputs import plan_files
    from mla_cost.studies.sweep import of
    from mla_cost.studies.sweep.axes import expand, is_glob

    if is_glob(flags["model"]):
        over.setdefault("model", flags["model"])
        flags["model"] = None
    for name in ("device", "form"):
        if flags[name] is not None and flags[name] != ["all"]:
            flags[name] = expand(name, flags[name])
    return of(plan_files.settings(file, flags, assigned, reserve), over)


def _save(study: Sweep, output: Path, resume: bool) -> int:
    from mla_cost.cli import interrupt
    from mla_cost.studies.sweep.output import save

    with _progress(len(study)) as progress:
        try:
            with interrupt.raised():  # the file is to be closed first
                answered = save(study, output, resume, progress)
        except KeyboardInterrupt:
            sys.stderr.write(f"mla-cost: stopped; --resume continues {output}\n")
            raise typer.Exit(130) from None
    _wrote(output, f"{len(study):,} rows, {answered:,} of them with an answer")
    return answered


def _wrote(path: Path, what: str) -> None:
    """Where the answer went, beside it: on stderr, so that a pipe has rows only."""
    sys.stderr.write(f"mla-cost: wrote {path}: {what}\n")


@contextmanager
def _progress(points: int) -> Iterator[Callable[[int], None]]:
    """A bar with rate and time left, on a terminal's stderr only."""
    if not sys.stderr.isatty():
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


def _print(study: Sweep, shape: str) -> int:
    from mla_cost.views import rows as view

    if shape in {"table", "markdown"}:
        most = TABLE_ROWS if shape == "table" else MARKDOWN_ROWS
        rows = _first_rows(study, most)
        if shape == "table":
            of_model = study.grid.settings.scope == "model"
            sent = "by the worst stage in one optimizer step" if of_model else "in forward and backward"
            view.show(_varying(study), rows, len(study) - len(rows), sent)
        else:
            sys.stdout.write(view.markdown_text(study.columns, rows))
        return sum(row["status"] != "illegal" for row in rows) or len(study) > len(rows)
    return _stream(study, shape)


def _first_rows(study: Sweep, most: int) -> list[dict[str, Any]]:
    return [study[index] for index in range(min(most, len(study)))]


def _varying(study: Sweep) -> list[str]:
    """The settings that vary, then the names that do."""
    settings = [axis.name for axis in study.grid.axes if axis.name not in study.names or len(axis.values) > 1]
    names = [name for name in ("form", "scheme", "kernel", "device") if name not in settings]
    shown = [name for name in names if name == "form" or (name == "device" and len(study.names["device"]) > 1)]
    return [*settings, *shown]


def _stream(study: Sweep, shape: str) -> int:
    from mla_cost.batch.codes import ILLEGAL
    from mla_cost.studies.sweep import output

    answered = 0
    write = sys.stdout.write
    if shape == "csv":
        write(output.csv_head(study))
    elif shape == "json":
        write('{"schema": "mla-cost/sweep/1", "rows": [')
    comma = ""
    sys.stdout.flush()  # what cannot be written to is told before anything is priced
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


def _draw(study: Sweep, path: Path) -> None:
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
    _wrote(path, f"{len(panels)} panel{'s' * (len(panels) > 1)} of {len(study):,} rows")


def _priced(study: Sweep) -> str:
    """What a picture is about, in words."""
    settings = study.grid.settings
    if settings.scope == "model":
        return "the whole model"
    return "one attention block" if settings.layers == 1 else f"{settings.layers} attention blocks"
