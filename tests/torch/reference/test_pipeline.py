"""A pipeline in the executor: its order of passes, the numbers of one process, what a stage sends and what it keeps."""

from __future__ import annotations

from dataclasses import replace

import pytest

pytest.importorskip("torch")

import torch
from torch.nn.functional import cross_entropy, linear, rms_norm

from mla_cost.checks.reference import DIMS, Spec, initialise
from mla_cost.checks.reference.fake import run_stage
from mla_cost.checks.reference.layer import MtpInput
from mla_cost.checks.reference.norm import EPSILON
from mla_cost.checks.reference.pipeline import ChunkModule, PipelineSpec, passes
from mla_cost.checks.reference.pipeline_ranks import PipelineRun, run_alone, run_pipelines

TINY = Spec(
    layer="moe", dims=DIMS["tiny"], seq_len=16, sp=1, micro_batch=2, dtype="fp32", mask="tensor", ffn=48, vocab=40,
    experts=8, experts_per_token=2, expert_ffn=16, shared_ffn=32,
)  # fmt: skip
TWO_STAGES = PipelineSpec(TINY, (("embedding", "dense"), ("moe", "mtp_moe", "head")), 2, 3)
INTERLEAVED = PipelineSpec(
    replace(TINY, remat="full"),
    (("embedding", "dense"), ("dense", "moe"), ("moe",), ("moe", "mtp_moe", "mtp_dense", "head")),
    2,
    4,
)
THREE_STAGES = PipelineSpec(TINY, (("embedding",), ("dense",), ("moe", "head")), 3, 5)
HIDDEN = 16 * 2 * 32 * 4  # bytes of a micro-batch's hidden states


def order(pipeline: PipelineSpec, stage: int) -> str:
    """The passes in short: F or B, the chunk as a letter, the micro-batch."""
    return " ".join(f"{'BF'[at.forward]}{'ab'[at.chunk]}{at.micro_batch}" for at in passes(pipeline, stage))


def test_one_forward_then_one_backward() -> None:
    assert order(TWO_STAGES, 0) == "Fa0 Fa1 Ba0 Fa2 Ba1 Ba2"
    assert order(TWO_STAGES, 1) == "Fa0 Ba0 Fa1 Ba1 Fa2 Ba2"
    assert order(replace(TWO_STAGES, num_micro_batches=1), 0) == "Fa0 Ba0"


def test_interleaved() -> None:
    """Two stages, two chunks each: four forwards ahead on the first stage, two on the last."""
    first = "Fa0 Fa1 Fb0 Fb1 Fa2 Bb0 Fa3 Bb1 Fb2 Ba0 Fb3 Ba1 Bb2 Bb3 Ba2 Ba3"
    assert order(INTERLEAVED, 0) == first
    assert order(INTERLEAVED, 1) == "Fa0 Fa1 Fb0 Bb0 Fb1 Bb1 Fa2 Ba0 Fa3 Ba1 Fb2 Bb2 Fb3 Bb3 Ba2 Ba3"


@pytest.fixture(scope="module")
def runs() -> dict[PipelineSpec, PipelineRun]:
    asked = [TWO_STAGES, INTERLEAVED, THREE_STAGES]
    return dict(zip(asked, run_pipelines(asked), strict=True))


@pytest.mark.xdist_group("ranks")
@pytest.mark.parametrize("pipeline", [TWO_STAGES, INTERLEAVED, THREE_STAGES], ids=["two", "interleaved", "three"])
def test_ranks_find_what_one_process_finds(pipeline: PipelineSpec, runs: dict[PipelineSpec, PipelineRun]) -> None:
    """Bit for bit: the same ops in the same order, micro-batches added up in the same order."""
    found, alone = runs[pipeline], run_alone(pipeline)
    assert found.gradients.keys() == alone.gradients.keys()
    assert [loss.item() for loss in found.losses] == [loss.item() for loss in alone.losses]
    different = [name for name, gradient in found.gradients.items() if not torch.equal(gradient, alone.gradients[name])]
    assert different == []
    assert all(gradient.abs().max() > 0 for gradient in alone.gradients.values())


def test_a_stage_sends_hidden_states_on_and_gradients_back() -> None:
    for stage, sent in ((0, ["forward"] * 3), (1, ["backward"] * 3)):
        whole, _ = run_stage(TWO_STAGES, stage)
        calls = [call for call in whole.collectives if call.axis == "pp"]
        assert [(call.kind, call.payload_bytes) for call in calls] == [("point_to_point", HIDDEN)] * len(sent)


def test_what_was_sent_is_let_go() -> None:
    """After its forward a stage has the gradient that it was sent, and beside it nothing but what is saved."""
    whole, steps = run_stage(replace(TWO_STAGES, num_micro_batches=1), 0)
    saved = {storage.serial for storage in whole.saved}
    (received,) = (storage for storage in steps[0].kept if storage.serial not in saved)
    assert (received.op, received.bytes) == ("empty", HIDDEN)
    assert steps[-1].kept == whole.alive_at_end == ()


def test_a_modules_input_is_two_norms_joined_and_projected() -> None:
    layer = MtpInput(replace(TINY, layer="mtp_input"))
    with torch.no_grad():
        initialise(layer)
    ids = torch.arange(32).view(16, 2)
    layer.read(ids)
    x = torch.randn(16, 2, 32, generator=torch.Generator().manual_seed(1))
    tokens = rms_norm(layer.embedding.embedding.weight[ids], (32,), layer.token_norm.weight, EPSILON)
    hidden = rms_norm(x, (32,), layer.hidden_norm.weight, EPSILON)
    expected = linear(torch.cat([tokens, hidden], -1), layer.joined.weight)
    torch.testing.assert_close(layer(x), expected, atol=1e-5, rtol=1e-4)


def test_a_module_predicts_one_token_further_with_the_models_head() -> None:
    chunk = ChunkModule(replace(TINY, layer="dense"), ("mtp_dense", "head"))
    with torch.no_grad():
        initialise(chunk)
    head, (module,) = chunk.head, chunk._ahead
    assert head is not None
    assert module.head.head is head.head
    ids = torch.randint(40, (18, 2), generator=torch.Generator().manual_seed(2))
    chunk.read([ids[k : k + 16] for k in range(3)])
    x = torch.randn(16, 2, 32, generator=torch.Generator().manual_seed(1))
    ahead = module.layer(module.input(x))

    def loss(y: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        logits = linear(rms_norm(y, (32,), weight, EPSILON), head.head.weight)
        return cross_entropy(logits.flatten(0, 1), targets.flatten())

    expected = loss(x, head.norm.weight, ids[1:17]) + loss(ahead, module.head.norm.weight, ids[2:18])
    torch.testing.assert_close(chunk(x), expected)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"stages": 3}, "3 stages do not divide 4 parts"),
        ({"num_micro_batches": 3}, "interleaved, 3 micro-batches do not fill 2 stages"),
    ],
)
def test_what_no_schedule_runs_is_refused(change: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(INTERLEAVED, **change)  # type: ignore[arg-type]


def test_real_ranks_are_one_to_a_stage() -> None:
    with pytest.raises(ValueError, match="a stage is one rank"):
        run_pipelines([replace(TWO_STAGES, layers=replace(TINY, tp=2))])
