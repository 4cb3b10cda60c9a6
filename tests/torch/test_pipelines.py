"""The model's pipelines against the executor's: every pass to the byte, the real allocator, and MTP's timeline."""

from __future__ import annotations

from dataclasses import replace

import pytest

pytest.importorskip("torch")

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from mla_cost.checks.reference import DIMS, Spec, initialise, record
from mla_cost.checks.reference.allocator import allocator_peak
from mla_cost.checks.reference.fake import fake_groups, run_stage
from mla_cost.checks.reference.layer import make_inputs
from mla_cost.checks.reference.pipeline import ChunkModule, PipelineSpec, StageModule
from mla_cost.checks.validation.pipelines import check_pipeline, model_side
from mla_cost.checks.validation.traces import (
    executor_kept,
    executor_steps,
    first_difference,
    kept_difference,
    model_kept,
    model_steps,
)
from mla_cost.language.evaluate import Evaluation, account_of
from mla_cost.pricing.compile import timeline
from mla_cost.pricing.stage import Segment, activations, as_allocated
from tests.choosing import EXHAUSTIVE
from tests.program_checks import check

Parts = tuple[tuple[str, ...], ...]
TINY = Spec(
    layer="moe", dims=DIMS["tiny"], seq_len=16, sp=1, ffn=48, vocab=256,
    experts=8, experts_per_token=2, expert_ffn=16, shared_ffn=32,
)  # fmt: skip
V3 = Spec(layer="moe", kernel="flash", seq_len=4096, sp=1)
ENDS = (("embedding", "dense"), ("dense", "head"))
INTERLEAVED = (("embedding", "dense"), ("dense", "moe"), ("moe",), ("moe", "mtp_moe", "head"))
LAST_STAGE = (("embedding", "dense"), ("moe", "mtp_moe", "head"))


def disagreements(pipeline: PipelineSpec) -> list[str]:
    return [f"{row.check} {row.cell}: {row.detail}" for row in check_pipeline(pipeline) if row.status == "disagrees"]


CHANGES: list[tuple[dict[str, object], Parts, int]] = [
    ({"form": "laga", "sp": 2}, ENDS, 4),
    ({"form": "absorbed", "kernel": "mem-efficient", "tp": 2}, LAST_STAGE, 1),
    ({"remat": "core_attn", "micro_batch": 2}, LAST_STAGE, 2),
    ({"sp": 2, "tp": 2, "ep": 4}, LAST_STAGE, 2),
]


@pytest.mark.parametrize(
    ("change", "parts", "micro_batches"),
    [(change, parts, m) for change, parts, own in CHANGES for m in (1, 2, 4) if EXHAUSTIVE or m == own],
    ids=str,
)
def test_every_pass_keeps_and_has_alive_what_the_model_says(
    change: dict[str, object], parts: Parts, micro_batches: int
) -> None:
    assert disagreements(PipelineSpec(replace(TINY, **change), parts, 2, micro_batches)) == []  # type: ignore[arg-type]


@pytest.mark.parametrize(("remat", "parts"), [("none", INTERLEAVED), ("full", LAST_STAGE)], ids=str)
def test_deepseek_v3_widths(parts: Parts, remat: str) -> None:
    assert disagreements(PipelineSpec(replace(V3, remat=remat), parts, 2, 4 if EXHAUSTIVE else 2)) == []


@pytest.mark.parametrize("change", [{}, {"remat": "full"}, {"form": "laga", "sp": 2, "remat": "core_attn"}], ids=str)
def test_gpipe_keeps_every_micro_batch(change: dict[str, object]) -> None:
    parts = (("embedding", "dense"), ("dense",), ("moe", "head"))
    assert disagreements(PipelineSpec(replace(TINY, **change), parts, 3, 5 if EXHAUSTIVE else 3, "gpipe")) == []  # type: ignore[arg-type]


def test_three_stages_interleaved_three_times() -> None:
    parts = (("embedding", "dense"), *[("dense",)] * 7, ("head",))
    assert disagreements(PipelineSpec(TINY, parts, 3, 6 if EXHAUSTIVE else 3)) == []


def test_an_embedding_alone_ends_in_an_exchange_that_is_not_priced() -> None:
    """Sent and received hidden states meet there, one more than the embedding's own pass has: u b h bytes."""
    (row,) = (
        row
        for row in check_pipeline(PipelineSpec(TINY, (("embedding",), ("dense", "head")), 2, 1))
        if row.status == "disagrees"
    )
    assert (row.check, row.detail) == ("pipeline: peak", "pass 0: model 1024, executor 2048")


REAL = replace(TINY, seq_len=64, ffn=96, vocab=1024, dtype="fp32", norm="composite")


@pytest.mark.parametrize("change", [{}, {"remat": "full"}, {"vocab": 128, "seq_len": 128}], ids=str)
@pytest.mark.parametrize(
    ("parts", "stages"),
    [
        (ENDS, 2),
        ((("embedding", "dense"), ("dense",), ("dense", "dense"), ("dense", "mtp_dense", "head")), 2),
        ((("embedding", "dense", "mtp_dense", "head"),), 1),
    ],
)
def test_the_real_allocator_peaks_where_the_model_says(parts: Parts, stages: int, change: dict[str, object]) -> None:
    """Gradients added in place, workspace inside calls: what no dispatch mode shows."""
    pipeline = PipelineSpec(replace(REAL, **change), parts, stages, 4)  # type: ignore[arg-type]
    parallel, chunks = model_side(pipeline, as_allocated("cpu"))
    for stage in range(stages):
        assert allocator_peak(filled(pipeline, stage).steps()) == activations(parallel, stage, chunks[stage]).bytes


def filled(pipeline: PipelineSpec, stage: int) -> StageModule:
    run = StageModule(pipeline, stage)
    with torch.no_grad():
        initialise(run.module)
    return run


def test_a_shared_embeddings_gradient_waits_for_its_second_part() -> None:
    """On one stage the module ahead looks tokens up in the model's embedding: the first gradient waits, V h fp32."""
    pipeline = PipelineSpec(
        replace(REAL, seq_len=16, ffn=4096, vocab=512), (("embedding", "dense", "moe", "mtp_moe", "head"),), 1, 2
    )
    parallel, chunks = model_side(pipeline, as_allocated("cpu"))
    worst = activations(parallel, 0, chunks[0])
    assert allocator_peak(filled(pipeline, 0).steps()) == worst.bytes
    assert worst.part is not None
    assert worst.where == "backward of out (dense)"
    assert dict(worst.part.held) == {"gradient of the embedding, from the modules ahead": 512 * 32 * 4}


def test_a_weights_gradient_is_gone_before_the_next_event() -> None:
    """The last stage is a head alone: live bytes after every allocation of its pass back, one by one."""
    pipeline = PipelineSpec(TINY, (("embedding", "dense"), ("head",)), 2, 1)
    whole, (forward, _) = run_stage(pipeline, 1)
    chunks = model_side(pipeline, Evaluation.walk_accumulated_seen)[1]
    (head,) = chunks[1][0].segments
    kept = sum(storage.bytes for storage in forward.kept)
    backward = [event for event in whole.events if event.phase == "backward"]
    theirs = [event.live_bytes for event in backward if event.kind == "alloc"]
    assert theirs[0] > kept
    assert theirs == rises(head)


def rises(segment: Segment) -> list[int]:
    """The model's live bytes after every allocation in backward."""
    tape, sizes = segment.at.account.accumulated_seen, segment.at.sizes
    live, found = 0, []
    for at, (size, sign) in enumerate(zip(tape.sizes, tape.signs, strict=True)):
        live += sign * sizes[size]
        if at >= tape.forward and sign > 0:
            found.append(live)
    return found


# ---- multi-token prediction


@pytest.mark.parametrize("degrees", [{}, {"tp": 2}, {"sp": 2, "tp": 2, "micro_batch": 2}], ids=str)
def test_a_modules_input(degrees: dict[str, int]) -> None:
    check(replace(TINY, layer="mtp_input", **degrees))  # type: ignore[arg-type]


@pytest.mark.parametrize("remat", ["none", "full", "core_attn"])
@pytest.mark.parametrize("degrees", [{}, {"tp": 2}, {"sp": 2, "tp": 2, "micro_batch": 2}], ids=str)
@pytest.mark.parametrize("layer", ["dense", "moe"])
def test_a_module_and_the_head_event_by_event(layer: str, degrees: dict[str, int], remat: str) -> None:
    """Both take the same hidden states and share the head's weight, whose first gradient waits for the second."""
    spec = replace(TINY, layer=layer, remat=remat, **degrees)  # type: ignore[arg-type]
    with fake_groups(spec.sp, spec.tp) as groups, FakeTensorMode():
        recording = record(ChunkModule(spec, (f"mtp_{layer}", "head"), groups), make_inputs(spec))
    names = ("embedding", "dense"), (layer, f"mtp_{layer}", "head")
    last = model_side(PipelineSpec(spec, names, 2, 1), Evaluation.walk)[1][1][0].segments[-1]
    key = last.point.key._replace(input_held=True)
    at = Evaluation(account_of(timeline(key)), last.at.values)
    assert first_difference(model_steps(at), executor_steps(recording)) == ""
    assert kept_difference(model_kept(at), executor_kept(recording)) == ""
