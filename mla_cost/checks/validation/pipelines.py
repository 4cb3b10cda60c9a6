"""A pipeline step on fake tensors: the order of passes, what is kept after each and alive in each, to the byte."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import zip_longest
from typing import Any

from mla_cost.checks.reference.fake import run_stage
from mla_cost.checks.reference.pipeline import MTP, ORDERS, Pass, PipelineSpec
from mla_cost.checks.reference.pipeline import passes as executor_passes
from mla_cost.checks.reference.spec import DIMS, Spec
from mla_cost.checks.validation.cells import Size
from mla_cost.checks.validation.cells import name as cell_name
from mla_cost.checks.validation.report import CheckRow, row
from mla_cost.declared.schedules import SCHEDULES
from mla_cost.inputs.config import AttentionDims, ModelConfig
from mla_cost.inputs.settings import PlanSettings
from mla_cost.language.evaluate import Evaluation
from mla_cost.language.schedule import PassKind, ScheduledPass
from mla_cost.mesh.degrees import Parallel
from mla_cost.mesh.placement import stages
from mla_cost.mesh.schedule import PassInFlight, passes, passes_in_order
from mla_cost.pricing.stage import ChunkCost, Look, Segments, during
from mla_cost.pricing.stage_weights import RankWeights, WeightsAsked
from mla_cost.pricing.units import unit_of
from mla_cost.weights.states import StateSettings

LETTERS = {"embedding": "E", "dense": "t", "moe": "t", "head": "L"}
SETTINGS = (
    *("kernel", "scheme", "seq_len", "sp", "tp", "ep", "micro_batch", "dtype", "v_layout", "value_padding", "norm"),
    *("attention_layout", "softmax_dtype", "mask", "names", "remat"),
)
DENSE = (("embedding", "dense"), ("dense", "head"))
EXPERTS = (("embedding", "dense"), ("moe", "head"))
WIDE_FIRST = (("embedding", "dense", "moe"), ("moe", "head"))
AHEAD = (("embedding", "dense"), ("moe", "mtp_moe", "head"))
INTERLEAVED = (("embedding", "dense"), ("dense", "moe"), ("moe",), ("moe", "mtp_moe", "head"))


def pipeline_cells(size: Size) -> list[PipelineSpec]:
    """Two stages: few and many micro-batches, dense and expert layers, tp, recomputation, interleaving, MTP."""
    widths: dict[str, Any] = {"experts": 8, "experts_per_token": 2, "expert_ffn": 16, "shared_ffn": 32}
    tiny = Spec(layer="moe", dims=DIMS["tiny"], seq_len=16, sp=1, ffn=48, vocab=256, **widths)
    real = Spec(layer="moe", seq_len=4096, sp=1)
    asked: list[tuple[Spec, tuple[tuple[str, ...], ...], int]] = [(tiny, DENSE, 4), (real, AHEAD, 2)]
    if size != "quick":
        asked += [(tiny, parts, m) for parts in (DENSE, EXPERTS, AHEAD) for m in (1, 2)]
        asked += [
            (replace(tiny, **changed), parts, 2)
            for changed in ({"remat": "full"}, {"tp": 2}, {"sp": 2, "tp": 2, "micro_batch": 2, "remat": "full"})
            for parts in (DENSE, AHEAD)
        ]
        asked += [(replace(tiny, ffn=2048), WIDE_FIRST, 2), (replace(tiny, vocab=8192), DENSE, 2)]
        asked += [(tiny, INTERLEAVED, 4), (replace(tiny, remat="full"), INTERLEAVED, 4), (real, DENSE, 2)]
    gpipe = [(tiny, DENSE, 3), (replace(tiny, remat="full"), AHEAD, 3)][: 1 if size == "quick" else 2]
    return [
        *(PipelineSpec(spec, parts, 2, m) for spec, parts, m in asked),
        *(PipelineSpec(spec, parts, 2, m, "gpipe") for spec, parts, m in gpipe),
    ]


def check_pipeline(pipeline: PipelineSpec) -> Iterator[CheckRow]:
    """Every stage of a cell, pass by pass."""
    parallel, chunks = model_side(pipeline, Evaluation.walk_accumulated_seen)
    for stage in range(pipeline.stages):
        cell, stated = f"{name(pipeline)} stage {stage}", _stated(pipeline, stage)
        order = list(passes_in_order(parallel, stage)), [_named(at) for at in executor_passes(pipeline, stage)]
        yield row("pipeline: order", cell, _first_difference(*order), f"{len(order[0])} passes")
        _, recorded = run_stage(pipeline, stage)
        for what, ours, theirs in (
            ("kept", kept(parallel, stage, chunks[stage]), [sum(s.bytes for s in step.kept) for step in recorded]),
            ("peak", peaks(parallel, stage, chunks[stage]), [step.peak_bytes for step in recorded]),
        ):
            detail = f"at most {max(ours):,} B in {len(ours)} passes"
            yield row(f"pipeline: {what}", cell, _first_difference(ours, theirs), detail, by_construction=stated)


def _named(at: Pass) -> ScheduledPass:
    """A pass of the executor in the words of the model."""
    return ScheduledPass(PassKind.FORWARD if at.forward else PassKind.BACKWARD, at.chunk, at.micro_batch)


def name(pipeline: PipelineSpec) -> str:
    """A cell in words."""
    parts = " | ".join(" ".join(part) for part in pipeline.parts)
    order = "" if pipeline.order == ORDERS[0] else f", {pipeline.order}"
    return f"{cell_name(pipeline.layers)}: {parts}, {pipeline.num_micro_batches} micro-batches{order}"


def _stated(pipeline: PipelineSpec, stage: int) -> bool:
    """Whether a stand-in is among what the stage runs."""
    parts = pipeline.parts[stage :: pipeline.stages]
    layers = {layer.removeprefix(MTP) for part in parts for layer in part}
    spec = pipeline.layers
    return any(replace(spec, layer=layer, ep=1, remat="none").by_construction for layer in layers)


def model_side(
    pipeline: PipelineSpec, look: Look, keeping: StateSettings | None = None, dp: int = 1
) -> tuple[Parallel, list[list[ChunkCost]]]:
    """The degrees of a cell, and what the chunks of each stage cost. keeping: of weights gathered unit by unit."""
    model = model_of(pipeline)
    parallel = Parallel(
        tp=pipeline.layers.tp,
        sp=pipeline.layers.sp,
        pp=pipeline.stages,
        ep=pipeline.layers.ep,
        dp=dp,
        num_micro_batches=pipeline.num_micro_batches,
        schedule=SCHEDULES.get(pipeline.order),
        layout="|".join("".join(LETTERS.get(layer, "m") for layer in part) for part in pipeline.parts),
    )
    given = {field: getattr(pipeline.layers, field) for field in SETTINGS}
    settings = PlanSettings.model_validate({**given, "vocab_multiple": 1})
    weights = RankWeights(model, WeightsAsked.of(pipeline.layers.form, settings))
    segments = Segments(
        model,
        pipeline.layers.form,
        settings,
        look,
        gathering=keeping and keeping.gathering,
        unit=keeping and (lambda layer: unit_of(weights.unit(layer), parallel, keeping)),
    )
    laid_out = stages(parallel, model.num_layers or 0, model.num_mtp_layers or 0)
    return parallel, [[segments.chunk(chunk) for chunk in chunks] for chunks in laid_out]


def model_of(pipeline: PipelineSpec) -> ModelConfig:
    spec, dims = pipeline.layers, pipeline.layers.dims
    names = [layer for part in pipeline.parts for layer in part]
    return ModelConfig(
        name="cell",
        title="cell",
        dims=AttentionDims(
            hidden=dims.hidden,
            heads=dims.heads,
            q_lora_rank=dims.q_lora_rank,
            kv_lora_rank=dims.kv_lora_rank,
            qk_nope_head_dim=dims.nope,
            qk_rope_head_dim=dims.rope,
            v_head_dim=dims.value,
        ),
        num_layers=names.count("dense") + names.count("moe"),
        num_mla_layers=names.count("dense") + names.count("moe"),
        num_dense_layers=names.count("dense"),
        num_mtp_layers=sum(layer.startswith(MTP) for layer in names),
        intermediate_size=spec.ffn,
        moe_intermediate_size=spec.expert_ffn,
        num_routed_experts=spec.experts if "moe" in names else 0,
        num_shared_experts=spec.shared_ffn // spec.expert_ffn,
        num_experts_per_token=spec.experts_per_token,
        vocab_size=spec.vocab,
    )


def kept(parallel: Parallel, stage: int, chunks: Sequence[ChunkCost]) -> list[int]:
    """What the stage holds after each pass: what micro-batches keep, and what the next pass has been sent."""
    order = list(passes(parallel, stage))
    received = [_received(at, chunks) for at in order[1:]]
    return [
        _beside(at, chunks) + (at.kind is PassKind.FORWARD) * chunks[at.chunk].saved_bytes + more
        for at, more in zip(order, [*received, 0], strict=True)
    ]


def _beside(at: PassInFlight, chunks: Sequence[ChunkCost]) -> int:
    return sum(count * chunk.saved_bytes for count, chunk in zip(at.beside, chunks, strict=True))


def _received(at: PassInFlight, chunks: Sequence[ChunkCost]) -> int:
    """Hidden states, or their gradient, that a pass takes from another stage."""
    first, last = chunks[at.chunk].segments[0], chunks[at.chunk].segments[-1]
    taken = first.point.key.input_held if at.kind is PassKind.FORWARD else last.point.key.gradient_held
    return taken * first.hidden_bytes


def peaks(parallel: Parallel, stage: int, chunks: Sequence[ChunkCost]) -> list[int]:
    """The most alive in each pass."""
    return [during(at, chunks).bytes for at in passes(parallel, stage)]


def _first_difference(ours: Sequence[object], theirs: Sequence[object]) -> str:
    pairs = enumerate(zip_longest(ours, theirs))
    return next((f"pass {at}: model {one}, executor {other}" for at, (one, other) in pairs if one != other), "")
