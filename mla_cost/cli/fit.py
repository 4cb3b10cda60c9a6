"""`mla-cost fit`: the longest sequence, the least sp, the fewest devices."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from mla_cost.cli import helps

Names = list[str] | None


def fit(
    file: Annotated[Path | None, typer.Argument(metavar="[PLAN.yaml]", help="A plan file; flags override it.")] = None,
    model: Annotated[str | None, typer.Option(help=helps.MODEL)] = None,
    device: Annotated[Names, typer.Option(help=f"Devices, repeated or separated by commas; {helps.DEVICES}")] = None,
    form: Annotated[Names, typer.Option(help="Forms, repeated or separated by commas; `all` by default.")] = None,
    seq_len: Annotated[
        int | None, typer.Option(help=f"The target of the least sp and the fewest devices; {helps.SEQ_LEN}")
    ] = None,
    max_seq_len: Annotated[
        int | None, typer.Option(help="Where the search for the longest sequence ends; 16,777,216 by default.")
    ] = None,
    zigzag: Annotated[
        bool, typer.Option("--zigzag", help="Each rank takes two pieces of a sequence: multiples of 2 sp tp.")
    ] = False,
    micro_batch: Annotated[int | None, typer.Option(help="Sequences in a micro-batch; 1 by default.")] = None,
    sp: Annotated[int | None, typer.Option("--sp", "--cp", "--context-parallel-size", help=helps.SP)] = None,
    tp: Annotated[int | None, typer.Option(help="Tensor-parallel ranks; 1 by default.")] = None,
    pp: Annotated[int | None, typer.Option(help="Pipeline stages; 1 by default.")] = None,
    ep: Annotated[int | None, typer.Option(help="Ranks that share the experts; 1 by default.")] = None,
    etp: Annotated[int | None, typer.Option(help="Ranks that share each expert; 1 by default.")] = None,
    dp: Annotated[int | None, typer.Option(help="Data-parallel ranks; 1 by default.")] = None,
    micro_batches: Annotated[int | None, typer.Option(help="Micro-batches of a step; 1 by default.")] = None,
    mtp: Annotated[int | None, typer.Option(help=helps.MTP)] = None,
    global_batch: Annotated[
        int | None,
        typer.Option(help="Sequences in an optimizer step; without it as many micro-batches as stages are assumed."),
    ] = None,
    scheme: Annotated[str | None, typer.Option(help="What crosses ranks; each form has its usual one.")] = None,
    kernel: Annotated[str | None, typer.Option(help=helps.KERNEL)] = None,
    layers: Annotated[int | None, typer.Option(help="Equal blocks in a row; 1 by default.")] = None,
    other_memory: Annotated[
        str | None, typer.Option(metavar="BYTES", help="Memory beside this scope, e.g. 2GiB.")
    ] = None,
    reserve: Annotated[Names, typer.Option(metavar="ITEM=BYTES", help="Override a reserve item of the device.")] = None,
    assign: Annotated[Names, typer.Option("--set", metavar="FIELD=VALUE", help="Any field of a plan.")] = None,
    scope: Annotated[
        str | None, typer.Option(metavar="model|attention", help="What is priced; model by default.")
    ] = None,
    output: Annotated[str, typer.Option("--format", metavar="table|json", help="How to print the answer.")] = "table",
    sequence_parallel: Annotated[bool, typer.Option("--sequence-parallel", hidden=True)] = False,
) -> None:
    """Find the longest sequence that fits, the least sp and the fewest devices, per device and form."""
    from mla_cost.cli import progress
    from mla_cost.errors import InputError
    from mla_cost.inputs import plan_files
    from mla_cost.studies.longest import of
    from mla_cost.studies.longest.result import MAX_SEQ_LEN

    if sequence_parallel:
        from mla_cost.cli.plan import _SEQUENCE_PARALLEL

        raise InputError(_SEQUENCE_PARALLEL)
    if output not in {"table", "json"}:
        raise InputError("unknown format", field="--format", value=output, allowed="table, json")
    flags: dict[str, Any] = {
        "model": model,
        "device": plan_files.names(device),
        "form": plan_files.names(form),
        "seq_len": seq_len,
        "micro_batch": micro_batch,
        "sp": sp,
        "tp": tp,
        "pp": pp,
        "ep": ep,
        "etp": etp,
        "dp": dp,
        "micro_batches": micro_batches,
        "mtp": mtp,
        "scheme": scheme,
        "kernel": kernel,
        "layers": layers,
        "other_memory": other_memory,
        "scope": scope,
    }
    settings = plan_files.settings(
        file, flags, plan_files.assignments(assign), plan_files.assignments(reserve, "reserve")
    )
    longest = MAX_SEQ_LEN if max_seq_len is None else max_seq_len
    with progress.shown("what fits") as watch:
        found = of(settings, max_seq_len=longest, zigzag=zigzag, global_batch=global_batch, watch=watch)
    if output == "json":
        sys.stdout.write(found.to_json() + "\n")
    elif not found.refused:
        from mla_cost.views import fit_table

        fit_table.show(found.to_dict())
    if found.refused:
        raise InputError(found.refused)
