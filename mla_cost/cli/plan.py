"""`mla-cost plan`: the verdict."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from mla_cost.cli import helps

Names = list[str] | None
FORMATS = ("table", "json", "csv", "markdown")
_SEQUENCE_PARALLEL = (
    "--sequence-parallel is Megatron's switch that divides activations over tensor-parallel ranks (here `megatron_sp`, "
    "always on when tp > 1); ranks that share one sequence are --sp (also --cp, --context-parallel-size)"
)


def plan(
    file: Annotated[
        Path | None,
        typer.Argument(metavar="[PLAN]", help="A plan file, or a ready plan that `plans` lists; flags override it."),
    ] = None,
    model: Annotated[str | None, typer.Option(help=helps.MODEL)] = None,
    device: Annotated[
        Names, typer.Option(help=f"Devices, repeated or separated by commas; `none` for no verdict. {helps.DEVICES}")
    ] = None,
    seq_len: Annotated[int | None, typer.Option(help=f"Sequence length, all ranks together; {helps.SEQ_LEN}")] = None,
    micro_batch: Annotated[int | None, typer.Option(help="Sequences in a micro-batch; 1 by default.")] = None,
    sp: Annotated[
        int | None,
        typer.Option("--sp", "--cp", "--context-parallel-size", help=helps.SP),
    ] = None,
    tp: Annotated[int | None, typer.Option(help="Tensor-parallel ranks; 1 by default.")] = None,
    pp: Annotated[int | None, typer.Option(help="Pipeline stages; 1 by default.")] = None,
    ep: Annotated[int | None, typer.Option(help="Ranks that share the experts; 1 by default.")] = None,
    etp: Annotated[int | None, typer.Option(help="Ranks that share each expert; 1 by default.")] = None,
    dp: Annotated[int | None, typer.Option(help="Data-parallel ranks; 1 by default.")] = None,
    sharding: Annotated[
        str | None,
        typer.Option(
            metavar="ddp|distributed|zero1|zero2", help="What data-parallel ranks share; distributed by default."
        ),
    ] = None,
    micro_batches: Annotated[int | None, typer.Option(help="Micro-batches of a step; 1 by default.")] = None,
    mtp: Annotated[int | None, typer.Option(help=helps.MTP)] = None,
    virtual_stages: Annotated[
        int | None, typer.Option(help="Chunks of layers that a stage holds, interleaved; 1 by default.")
    ] = None,
    pipeline_layout: Annotated[
        str | None,
        typer.Option(metavar="LAYOUT", help="What each stage holds, as 'Et|(tt|)*3tL'; as even as can be by default."),
    ] = None,
    schedule: Annotated[str | None, typer.Option(metavar="NAME|FILE.yaml", help=helps.SCHEDULE)] = None,
    form: Annotated[Names, typer.Option(help="Forms, repeated or separated by commas; `all` by default.")] = None,
    scheme: Annotated[str | None, typer.Option(help="What crosses ranks; each form has its usual one.")] = None,
    kernel: Annotated[str | None, typer.Option(help=helps.KERNEL)] = None,
    dtype: Annotated[
        str | None, typer.Option(metavar="bf16|fp16|fp32", help="Activations, weights, gradients.")
    ] = None,
    remat: Annotated[
        str | None,
        typer.Option(metavar="none|full|PART+PART", help="What backward runs again: core_attn, mlp, moe, ..."),
    ] = None,
    layers: Annotated[int | None, typer.Option(help="Equal blocks in a row (scope attention).")] = None,
    v_layout: Annotated[str | None, typer.Option(metavar="view|contiguous", help="V as a view or a copy.")] = None,
    value_padding: Annotated[str | None, typer.Option(metavar="none|qk", help="Pad V to the width of Q and K.")] = None,
    attention_layout: Annotated[
        str | None, typer.Option(metavar="sbnd|bsht|bnsd", help="The order of letters in eager attention.")
    ] = None,
    softmax_dtype: Annotated[str | None, typer.Option(metavar="activation|fp32", help="Dtype of the softmax.")] = None,
    mask: Annotated[str | None, typer.Option(metavar="none|tensor", help="A mask tensor in eager attention.")] = None,
    names: Annotated[
        str | None,
        typer.Option(metavar="rebound|held", help="Whether a name of the block's code goes where it is bound again."),
    ] = None,
    idle_mlp: Annotated[
        int | None,
        typer.Option(metavar="WIDTH", help="An MLP whose weights lie beside a block and do not run (scope attention)."),
    ] = None,
    norm: Annotated[
        str | None, typer.Option(metavar="fused|composite", help="RMSNorm in one kernel, or op by op.")
    ] = None,
    causal: Annotated[bool | None, typer.Option(help="Whether flops count attention as causal.")] = None,
    other_memory: Annotated[
        str | None, typer.Option(metavar="BYTES", help="Memory beside this scope, e.g. 2GiB.")
    ] = None,
    reserve: Annotated[Names, typer.Option(metavar="ITEM=BYTES", help="Override a reserve item of the device.")] = None,
    assign: Annotated[Names, typer.Option("--set", metavar="FIELD=VALUE", help="Any field: dims.heads=64.")] = None,
    scope: Annotated[
        str | None, typer.Option(metavar="model|attention", help="What is priced; model by default.")
    ] = None,
    profile: Annotated[
        str | None,
        typer.Option(metavar="reference|megatron", help="Whose implementation runs (megatron: scope model)."),
    ] = None,
    output: Annotated[
        str, typer.Option("--format", metavar="table|json|csv|markdown", help="How to print the answer.")
    ] = "table",
    require_fit: Annotated[
        bool, typer.Option("--require-fit", help="Exit with 1 when no form fits, on every stage.")
    ] = False,
    levers: Annotated[
        bool, typer.Option("--levers", help="What each change would do, and the least that fits.")
    ] = False,
    refused_levers: Annotated[
        bool, typer.Option("--refused-levers", help="The same, with changes that are refused and why.")
    ] = False,
    explain_term: Annotated[
        str | None, typer.Option(metavar="NAME", help="Where a number comes from: saved, allocated, kept, weights, ...")
    ] = None,
    stage: Annotated[int | None, typer.Option(help="The pipeline stage that is told; the worst by default.")] = None,
    bars: Annotated[bool, typer.Option("--bars", help="Memory as bars: of every form, or of every stage.")] = False,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE.png|svg", help="Draw memory: over time, or per stage (scope model).")
    ] = None,
    sequence_parallel: Annotated[bool, typer.Option("--sequence-parallel", hidden=True)] = False,
) -> None:
    """Price a rank of a whole model, or one MLA block, in every form on devices and say whether it fits."""
    from mla_cost import api
    from mla_cost.cli import progress
    from mla_cost.errors import InputError
    from mla_cost.inputs import plan_files

    if sequence_parallel:
        raise InputError(_SEQUENCE_PARALLEL)
    if output not in FORMATS:
        raise InputError("unknown format", field="--format", value=output, allowed=", ".join(FORMATS))
    flags: dict[str, Any] = {
        "model": model,
        "device": plan_files.names(device),
        "seq_len": seq_len,
        "micro_batch": micro_batch,
        "sp": sp,
        "tp": tp,
        "pp": pp,
        "ep": ep,
        "etp": etp,
        "sharding": sharding,
        "dp": dp,
        "micro_batches": micro_batches,
        "mtp": mtp,
        "virtual_stages": virtual_stages,
        "pipeline_layout": pipeline_layout,
        "schedule": schedule,
        "form": plan_files.names(form),
        "scheme": scheme,
        "kernel": kernel,
        "dtype": dtype,
        "remat": remat,
        "layers": layers,
        "v_layout": v_layout,
        "value_padding": value_padding,
        "attention_layout": attention_layout,
        "softmax_dtype": softmax_dtype,
        "mask": mask,
        "names": names,
        "idle_mlp": idle_mlp,
        "norm": norm,
        "causal": causal,
        "other_memory": other_memory,
        "scope": scope,
        "profile": profile,
        "stage": stage,
    }
    settings = plan_files.settings(
        file, flags, plan_files.assignments(assign), plan_files.assignments(reserve, "reserve")
    )
    if require_fit and not settings.device:
        raise InputError("a fit needs a device to fit on; name one with --device", field="--require-fit")
    if explain_term is not None:
        _explain(settings, explain_term, output)
        raise typer.Exit
    if plot is not None:
        _check_picture(plot)
    if (levers or refused_levers) and output not in {"table", "json"}:
        raise InputError("levers print as a table or as JSON", field="--format", value=output, allowed="table, json")
    with progress.shown("plan"):
        answer = api.with_levers(settings, refused=refused_levers) if levers or refused_levers else api.answer(settings)
    refused = _refused(answer)
    beside = _beside(settings.published) if settings.published and output == "table" else ""
    _print(answer, output, beside, bars=bars, refused=bool(refused))
    if refused:
        raise InputError(refused)
    if plot is not None:
        _draw(settings, answer, plot)
    raise typer.Exit(1 if require_fit and not _fits(answer) else 0)


def _print(answer: Any, output: str, beside: str, *, bars: bool, refused: bool) -> None:
    """The answer in the format asked for. refused: no row has numbers, so a table is empty; beside: what follows it."""
    if output == "json":
        sys.stdout.write(answer.to_json() + "\n")
    elif output in {"csv", "markdown"}:
        sys.stdout.write(_rows(answer, output))
    elif not refused:
        from mla_cost.views import table

        table.show(answer, bars=bars)
        sys.stdout.write(beside)


def _beside(published: str) -> str:
    """The published figures that the plan names, each beside what is predicted for it."""
    from mla_cost.checks.evidence import beside
    from mla_cost.views import evidence

    rows = [row._asdict() for row in beside(published)]
    return "\n" + evidence.beside(published, rows)


def _check_picture(plot: Path) -> None:
    from mla_cost.cli import plotting

    plotting.check(plot)


def _draw(settings: Any, answer: Any, plot: Path) -> None:
    from mla_cost.cli import plotting

    plotting.draw_plan(settings, answer, plot)


def _explain(settings: Any, term: str, output: str) -> None:
    from mla_cost import api
    from mla_cost.errors import InputError

    if output not in {"table", "json"}:
        raise InputError("terms print as a table or as JSON", field="--format", value=output, allowed="table, json")
    terms = api.terms(settings, term)
    if output == "json":
        from mla_cost.results import terms_json

        sys.stdout.write(terms_json(terms) + "\n")
    else:
        from mla_cost.views.terms import show

        show(terms)


def _rows(answer: Any, output: str) -> str:
    """The row model of sweeps, for one plan."""
    from mla_cost.results.columns import plan_columns, plan_rows
    from mla_cost.views import rows

    write = rows.csv_text if output == "csv" else rows.markdown_text
    return write(plan_columns(answer.inputs["scope"]), plan_rows(answer))


def _refused(answer: Any) -> str:
    """Why no row has an answer; empty where one has. A reason that several forms share is told once."""
    reasons: dict[str, list[str]] = {}
    for row in answer.results:
        if row.verdict is None or row.verdict.status != "illegal":
            return ""
        forms = reasons.setdefault(row.verdict.reason, [])
        if row.form not in forms:
            forms.append(row.form)
    return "; ".join(f"{', '.join(forms)}: {reason}" for reason, forms in reasons.items())


def _fits(answer: Any) -> bool:
    """Whether a form fits on every stage, also where one of them was asked for."""
    fitting = (row for row in answer.results if row.verdict.status in {"fits", "tight"})
    return any(_worst(row) + answer.inputs["other_memory"] <= row.verdict.usable_bytes for row in fitting)


def _worst(row: Any) -> Any:
    """The allocated peak of the stage that needs most. Bytes."""
    return max(stage.allocated_peak_bytes for stage in row.memory.stages or (row.memory,))
