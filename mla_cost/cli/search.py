"""`mla-cost search`: every legal plan for so many devices, ranked."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from mla_cost.cli import helps

Names = list[str] | None
FORMATS = ("text", "json", "csv")


def search(
    file: Annotated[
        Path | None,
        typer.Argument(
            metavar="[PLAN]",
            help="A plan file or ready plan: what is fixed; its degrees give devices and global batch.",
        ),
    ] = None,
    model: Annotated[str | None, typer.Option(help="A model of the catalogue, a model YAML or a config.json.")] = None,
    device: Annotated[Names, typer.Option(help="The device; the first one that a plan names by default.")] = None,
    devices: Annotated[str | None, typer.Option(metavar="N", help="How many: 512, or several as 64..1024*2.")] = None,
    global_batch: Annotated[int | None, typer.Option(help="Sequences in an optimizer step.")] = None,
    seq_len: Annotated[int | None, typer.Option(help="Sequence length, all ranks together.")] = None,
    form: Annotated[Names, typer.Option(help="Forms, repeated or separated by commas; `all` by default.")] = None,
    mtp: Annotated[int | None, typer.Option(help=helps.MTP)] = None,
    kernel: Annotated[str | None, typer.Option(help="The kernel; by default the one that trains each form.")] = None,
    tp: Annotated[str | None, typer.Option(metavar="VALUES", help="Try these only, as 1,2,4 or 1..8*2.")] = None,
    sp: Annotated[
        str | None, typer.Option("--sp", "--cp", "--context-parallel-size", metavar="VALUES", help="The same of sp.")
    ] = None,
    pp: Annotated[str | None, typer.Option(metavar="VALUES", help="The same of pp.")] = None,
    ep: Annotated[str | None, typer.Option(metavar="VALUES", help="The same of ep.")] = None,
    etp: Annotated[
        str | None, typer.Option(metavar="VALUES", help="Ranks that share each expert; 1 by default.")
    ] = None,
    virtual_stages: Annotated[
        str | None, typer.Option(metavar="VALUES", help="Chunks of layers per stage to try; 1 by default.")
    ] = None,
    micro_batch: Annotated[
        str | None, typer.Option(metavar="VALUES", help="Sequences in a micro-batch to try.")
    ] = None,
    scheme: Annotated[str | None, typer.Option(metavar="NAMES", help="Try these schemes only.")] = None,
    sharding: Annotated[
        str | None, typer.Option(metavar="NAMES", help="Try these only: ddp,distributed,zero1,zero2.")
    ] = None,
    remat: Annotated[str | None, typer.Option(metavar="NAMES", help="Try these only: none,full,core_attn,...")] = None,
    max_tp: Annotated[int | None, typer.Option(help="The largest tp; a node of the device by default.")] = None,
    max_sp: Annotated[int | None, typer.Option(help="The largest sp; no limit by default.")] = None,
    max_pp: Annotated[int | None, typer.Option(help="The largest pp; no limit by default.")] = None,
    max_ep: Annotated[int | None, typer.Option(help="The largest ep; no limit by default.")] = None,
    max_micro_batch: Annotated[int | None, typer.Option(help="The largest micro-batch; 4 by default.")] = None,
    max_idle: Annotated[
        int | None,
        typer.Option(metavar="PERCENT", help="The most that a stage may wait for others; 20 by default."),
    ] = None,
    by: Annotated[
        str | None,
        typer.Option(metavar="weight|sent|required|flops|idle|devices", help="What comes first, or several by commas."),
    ] = None,
    top: Annotated[int | None, typer.Option(help="How many layouts to tell; 10 by default.")] = None,
    pareto: Annotated[
        bool, typer.Option("--pareto", help="Those that none beats in memory, bytes sent and flops as well.")
    ] = False,
    profile: Annotated[
        str | None, typer.Option(metavar="reference|megatron", help="Whose implementation runs.")
    ] = None,
    other_memory: Annotated[
        str | None, typer.Option(metavar="BYTES", help="Memory beside this scope, e.g. 2GiB.")
    ] = None,
    reserve: Annotated[Names, typer.Option(metavar="ITEM=BYTES", help="Override a reserve item of the device.")] = None,
    assign: Annotated[Names, typer.Option("--set", metavar="FIELD=VALUE", help="Any other field of a plan.")] = None,
    output: Annotated[str, typer.Option("--format", metavar="text|json|csv", help="How to print the answer.")] = "text",
    require_fit: Annotated[bool, typer.Option("--require-fit", help="Exit with 1 when nothing fits.")] = False,
    sequence_parallel: Annotated[bool, typer.Option("--sequence-parallel", hidden=True)] = False,
) -> None:
    """Price every legal plan for a number of devices and rank those that fit."""
    import gc

    from mla_cost.errors import InputError
    from mla_cost.inputs import plan_files

    gc.enable()  # unlike a plan this makes millions of numbers
    if sequence_parallel:
        from mla_cost.cli.plan import _SEQUENCE_PARALLEL

        raise InputError(_SEQUENCE_PARALLEL)
    if output not in FORMATS:
        raise InputError("unknown format", field="--format", value=output, allowed=", ".join(FORMATS))
    flags: dict[str, Any] = {
        "model": model,
        "device": plan_files.names(device),
        "form": plan_files.names(form),
        "seq_len": seq_len,
        "mtp": mtp,
        "kernel": kernel,
        "profile": profile,
        "other_memory": other_memory,
    }
    axes: dict[str, str | None] = {
        "tp": tp,
        "sp": sp,
        "pp": pp,
        "ep": ep,
        "etp": etp,
        "virtual_stages": virtual_stages,
        "micro_batch": micro_batch,
        "scheme": scheme,
        "sharding": sharding,
        "remat": remat,
    }
    options: dict[str, Any] = {
        "devices": devices,
        "global_batch": global_batch,
        "max_tp": max_tp,
        "max_sp": max_sp,
        "max_pp": max_pp,
        "max_ep": max_ep,
        "max_micro_batch": max_micro_batch,
        "max_idle": max_idle,
        "by": by,
        "top": top,
    }
    settings = plan_files.settings(
        file, flags, plan_files.assignments(assign), plan_files.assignments(reserve, "reserve")
    )
    found = _search(settings, {name: text for name, text in axes.items() if text is not None}, options)
    _print(found, output, pareto=pareto)
    if found.refused:
        raise InputError(found.refused)
    raise typer.Exit(1 if require_fit and not found.results else 0)


def _search(settings: Any, axes: dict[str, str], options: dict[str, Any]) -> Any:
    from mla_cost.cli import progress
    from mla_cost.studies.search import of

    with progress.shown("candidates") as watch:
        return of(settings, axes, options, watch)


def _print(found: Any, output: str, *, pareto: bool) -> None:
    """The answer in the format asked for; where nothing is legal, the message says it all."""
    if output == "json":
        sys.stdout.write(found.to_json() + "\n")
    elif output == "csv":
        from mla_cost.studies.search import Candidate
        from mla_cost.views import search_table

        rows = found.to_dict()["pareto" if pareto else "results"]
        sys.stdout.write(search_table.csv_text(Candidate._fields, rows))
    elif not found.refused:
        from mla_cost.views import search_table

        search_table.show(found.to_dict(), pareto=pareto)
