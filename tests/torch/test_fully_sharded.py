"""Sharded weights against torch's own fully_shard: what stands between micro-batches, and the most beside it."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

pytest.importorskip("torch")

from mla_cost.checks.reference import DIMS, Spec
from mla_cost.checks.reference.fully_sharded import Lived, Sharded, run
from mla_cost.checks.reference.pipeline import PipelineSpec
from mla_cost.checks.validation.pipelines import model_of, model_side
from mla_cost.inputs.settings import PlanSettings
from mla_cost.language.evaluate import Evaluation
from mla_cost.mesh.degrees import Parallel
from mla_cost.mesh.placement import stages
from mla_cost.pricing.stage import activations
from mla_cost.pricing.stage_weights import RankWeights, WeightsAsked
from mla_cost.weights.sent import step_collectives
from mla_cost.weights.states import StateSettings, states

TINY = Spec(
    layer="moe", dims=DIMS["tiny"], seq_len=16, sp=1, ffn=48, vocab=250,
    experts=8, experts_per_token=2, expert_ffn=16, shared_ffn=32,
)  # fmt: skip
PARTS = ("embedding", "dense", "moe", "head")


def priced(spec: Spec, parts: tuple[str, ...], sharded: Sharded) -> tuple[Lived, str]:
    """The same by the rules of a plan, and where the most is."""
    keeping = StateSettings(
        sharding="fsdp",
        gradient_dtype=sharded.reduce,
        replicas=sharded.replicas,
        given_back=sharded.given_back,
        ahead=sharded.ahead,
    )
    pipeline = PipelineSpec(spec, (parts,), 1, 2)
    dp = sharded.ranks * sharded.replicas
    parallel, chunks = model_side(pipeline, Evaluation.walk_allocated_seen, keeping, dp)
    model = model_of(pipeline)
    asked = WeightsAsked.of(spec.form, PlanSettings(vocab_multiple=1))
    laid_out = stages(Parallel(), model.num_layers or 0)
    held = RankWeights(model, asked).parameters(laid_out[0], 1)
    kept = states(held, parallel, keeping)
    worst = activations(parallel, 0, chunks[0])
    sent: dict[str, int] = {}
    for call in step_collectives(held, parallel, keeping):
        if call.tensor.startswith("dense"):
            sent[call.kind] = sent.get(call.kind, 0) + call.calls // 2 * len(parts)
    return Lived(kept.weight_bytes + kept.gradient_bytes, worst.bytes, sent), worst.where


# the gradient of the loss itself, which fully_shard's hook keeps until backward ends
LOSS = 4


def agrees(spec: Spec, sharded: Sharded, *, fake: bool = False) -> None:
    found, where = priced(spec, PARTS, sharded)
    lived = run(spec, PARTS, sharded, fake=fake)
    assert found == lived._replace(peak=lived.peak - LOSS * where.startswith("backward")), where


@pytest.mark.parametrize(
    "sharded",
    [
        Sharded(4),
        Sharded(8, reduce="bf16"),
        Sharded(4, given_back=False),
        Sharded(4, ahead=2),
        Sharded(4, replicas=2),
        Sharded(3),
    ],
    ids=str,
)
def test_weights_decide_the_peak(sharded: Sharded) -> None:
    agrees(TINY, sharded)


@pytest.mark.parametrize("sharded", [Sharded(4), Sharded(4, given_back=False, ahead=1)], ids=str)
def test_activations_decide_the_peak(sharded: Sharded) -> None:
    agrees(replace(TINY, seq_len=128, vocab=2048, remat="core_attn"), sharded)


def test_more_ranks_than_experts() -> None:
    agrees(TINY, Sharded(16))


@pytest.mark.skipif("MLA_COST_EXHAUSTIVE" not in os.environ, reason="takes 8 s: make exhaustive")
def test_more_ranks_than_experts_at_the_widths_of_deepseek_v3() -> None:
    agrees(Spec(layer="moe", kernel="flash", seq_len=4096, sp=1), Sharded(512), fake=True)
