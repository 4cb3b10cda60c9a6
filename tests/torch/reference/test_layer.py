"""A dense layer, the embedding and the head: torch's own maths, the same numbers on tp x sp ranks, and what is kept."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.functional import linear, rms_norm, silu

from mla_cost.checks.reference import DIMS, Recording, Spec, count_flops, initialise, record, run_fake
from mla_cost.checks.reference.allocator import record_allocator
from mla_cost.checks.reference.forms import make_block
from mla_cost.checks.reference.layer import DenseLayer, Embedding, Head, attention_of, make_inputs, make_layer
from mla_cost.checks.reference.loss import LOSSES, cross_entropy, own_rows
from mla_cost.checks.reference.norm import EPSILON
from mla_cost.checks.reference.ranks import RankRun, run_ranks
from mla_cost.checks.reference.tp import assemble, divide

TINY = Spec(
    dims=DIMS["tiny"], seq_len=16, sp=1, micro_batch=2, dtype="fp32", mask="tensor", layer="dense", ffn=48, vocab=40
)
V3 = Spec(layer="dense", kernel="flash", seq_len=4096, sp=1)
BOUND = 1e-5  # fp32: largest difference over the largest magnitude of the single rank's tensor
TOKEN = 7168 * 2  # bytes of one position's hidden state, DeepSeek-V3, bf16
SHARDED = [
    replace(TINY, layer=layer, sp=sp, tp=tp)
    for layer in ("dense", "embedding", "head")
    for sp, tp in ((1, 2), (2, 1), (2, 2))
] + [
    replace(TINY, sp=2, tp=2, **change)
    for change in (
        {"form": "laga"},
        {"form": "absorbed"},
        {"scheme": "kv-gather"},
        {"dims": replace(TINY.dims, q_lora_rank=None, rope=0)},
        {"kernel": "mem-efficient", "norm": "composite"},
        {"layers": 2},
        {"layer": "head", "loss": "fused"},
        {"layer": "head", "loss": "chunked", "loss_chunks": 3},
        {"sharded_down": True},
        {"sharded_down": True, "form": "laga", "dims": replace(TINY.dims, q_lora_rank=None, rope=0)},
    )
]


def single(spec: Spec) -> Spec:
    return replace(spec, sp=1, tp=1)


def rank_name(spec: Spec) -> str:
    dims = "" if spec.dims == TINY.dims else "-no-q-lora-no-rope"
    down = "-sharded-down" if spec.sharded_down else ""
    maths = f"{spec.form}-{spec.scheme}-{spec.kernel}" if spec.has_attention else spec.loss
    return f"{spec.layer}-{maths}-sp{spec.sp}-tp{spec.tp}-x{spec.layers}{dims}{down}"


@pytest.fixture(scope="module")
def runs() -> dict[Spec, RankRun]:
    specs = list(dict.fromkeys([*SHARDED, *map(single, SHARDED)]))
    return dict(zip(specs, run_ranks(specs), strict=True))


@pytest.mark.xdist_group("ranks")
@pytest.mark.parametrize("spec", SHARDED, ids=rank_name)
class TestRanks:
    def test_sharded_equals_single(self, spec: Spec, runs: dict[Spec, RankRun]) -> None:
        """Output, input gradient, and every parameter's: divided ones put together, whole ones summed over tp."""
        whole = runs[single(spec)]
        differences = runs[spec].differences(whole)
        assert differences.keys() == whole.tensors.keys()
        assert max(differences.values()) < BOUND, differences

    def test_every_rank_calls_what_the_fake_groups_saw(self, spec: Spec, runs: dict[Spec, RankRun]) -> None:
        expected = run_fake(spec).collectives
        assert runs[spec].collectives == (expected,) * (spec.sp * spec.tp)
        assert {call.axis for call in expected} <= {"sp", "tp"}


# One rank against torch's own.


def filled(spec: Spec) -> nn.Module:
    layer = make_layer(spec)
    initialise(layer)
    return layer


def randoms(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(1))


def ids(spec: Spec) -> Tensor:
    shape = (spec.seq_len, spec.micro_batch)
    return torch.randint(spec.vocab, shape, generator=torch.Generator().manual_seed(2))


def gradients(out: Tensor, *leaves: Tensor) -> list[Tensor]:
    return list(torch.autograd.grad(out, leaves, randoms(*out.shape)))


def close(ours: list[Tensor], theirs: list[Tensor]) -> None:
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other, atol=1e-5, rtol=1e-4)


def test_dense_is_attention_and_swiglu_with_residuals() -> None:
    layer = filled(TINY)
    attention = make_block(attention_of(TINY))
    attention.load_state_dict({k.removeprefix("attention."): v for k, v in layer.state_dict().items() if "on." in k})
    parameters = dict(layer.named_parameters())
    x = randoms(16, 2, 32).requires_grad_()

    def norm(x: Tensor, name: str) -> Tensor:
        return rms_norm(x, (32,), parameters[f"{name}_norm.weight"], EPSILON)

    middle = x + attention(norm(x, "attention"))
    gate, up = linear(norm(middle, "mlp"), parameters["mlp.fc1.weight"]).chunk(2, -1)
    expected = middle + linear(silu(gate) * up, parameters["mlp.fc2.weight"])
    outside = [x, *(parameters[n] for n in ("attention_norm.weight", "mlp_norm.weight", "mlp.fc1.weight"))]
    ours = layer(x)
    close([ours, *gradients(ours, *outside)], [expected, *gradients(expected, *outside)])


def test_embedding_is_a_lookup() -> None:
    layer = filled(replace(TINY, layer="embedding"))
    assert isinstance(layer, Embedding)
    layer.read(ids(TINY))
    weight = layer.embedding.weight
    ours, expected = layer(), weight[ids(TINY)]
    close([ours, *gradients(ours, weight)], [expected, *gradients(expected, weight)])


CHUNKED = [{"loss": "chunked", "loss_chunks": n} for n in (1, 3, 32)]


@pytest.mark.parametrize("loss", [*({"loss": name} for name in LOSSES), *CHUNKED])
def test_head_is_torchs_cross_entropy(loss: dict[str, Any]) -> None:
    layer = filled(replace(TINY, layer="head", **loss))
    assert isinstance(layer, Head)
    layer.read(ids(TINY))
    x, leaves = randoms(16, 2, 32).requires_grad_(), [layer.norm.weight, layer.head.weight]
    logits = linear(rms_norm(x, (32,), layer.norm.weight, EPSILON), layer.head.weight)
    expected = nn.functional.cross_entropy(logits.flatten(0, 1), ids(TINY).flatten())
    ours = layer(x)
    assert ours.shape == ()
    close([ours, *gradients(ours, x, *leaves)], [expected, *gradients(expected, x, *leaves)])


def test_loss_of_large_bf16_logits_is_finite_and_in_fp32() -> None:
    logits = (randoms(4, 2, 40) * 200).bfloat16().requires_grad_()
    targets, others = own_rows(torch.zeros(4, 2, dtype=torch.int64), 0, 40)
    loss = cross_entropy(logits, targets, others.float() - 1)
    loss.backward()
    expected = nn.functional.cross_entropy(logits.float().flatten(0, 1), targets.flatten())
    torch.testing.assert_close(loss, expected)
    assert logits.grad is not None
    assert logits.grad.dtype == torch.bfloat16
    assert logits.grad.isfinite().all()


def test_every_token_is_a_row_of_one_rank() -> None:
    tokens = torch.tensor([[0, 3], [4, 7]])
    rows = [own_rows(tokens, first, 4) for first in (0, 4)]
    assert [row.tolist() for row, _ in rows] == [[[0, 3], [0, 0]], [[0, 0], [0, 3]]]
    assert (rows[0][1] ^ rows[1][1]).all()


@pytest.mark.parametrize("name", ["attention.q_up.weight", "mlp.fc2.weight", "0.mlp.fc1.weight", "embedding.weight"])
def test_dividing_and_assembling_are_inverse(name: str) -> None:
    whole = randoms(16, 8)
    parts = [divide(name, whole, 4, rank) for rank in range(4)]
    assert {part.numel() for part in parts} == {whole.numel() // 4}
    assert torch.equal(assemble(name, parts), whole)


def test_a_rank_has_pairs_of_gate_and_up() -> None:
    whole = torch.arange(8).unsqueeze(1)
    assert divide("mlp.fc1.weight", whole, 2, 1).flatten().tolist() == [2, 3, 6, 7]


# What is kept and what is alive.


@pytest.fixture(params=["real", "fake"])
def mode(request: pytest.FixtureRequest) -> Iterator[str]:
    with FakeTensorMode() if request.param == "fake" else nullcontext():
        yield request.param


def lines(recording: Recording, phase: str) -> list[tuple[str, tuple[int, ...]]]:
    """Allocations as (op, shape), parameters' gradients left out."""
    made = (storage for storage in recording.storages if storage.phase == phase)
    return [(storage.op, storage.shape) for storage in made if storage.role == "intermediate"]


@pytest.mark.usefixtures("mode")
def test_the_mlp_keeps_gate_up_once_and_gives_gates_gradient_first() -> None:
    layer = DenseLayer(TINY)
    recording = record(layer.mlp, [torch.ones(16, 2, 32, requires_grad=True)])
    assert [(s.op, s.shape) for s in recording.saved] == [
        ("input", (16, 2, 32)),
        ("mm", (32, 96)),
        ("silu", (16, 2, 48)),
        ("mul", (16, 2, 48)),
    ]
    assert [op for op, _ in lines(recording, "backward")] == ["ones", "mm", "mul", "mul", "silu_backward", "cat", "mm"]


@pytest.mark.usefixtures("mode")
def test_the_loss_in_place_keeps_probabilities_and_makes_one_gradient() -> None:
    layer = Head(replace(TINY, layer="head", loss="in-place"))
    recording = record(layer, make_inputs(TINY))
    assert [(s.op, s.dtype, s.shape) for s in recording.saved] == [
        ("input", "float32", (16, 2, 32)),
        ("rms_norm", "float32", (16, 2)),
        ("rms_norm", "float32", (16, 2, 32)),
        ("_to_copy", "float32", (16, 2, 40)),
    ]
    assert lines(recording, "forward")[-3:] == [("mm", (32, 40)), ("_to_copy", (16, 2, 40)), ("amax", (16, 2))]
    backward = [("_to_copy", (16, 2, 40)), ("mm", (32, 32)), ("rms_norm_backward", (16, 2, 32))]
    assert lines(recording, "backward") == backward
    assert set(recording.kept) == set(recording.saved)


@pytest.mark.parametrize("layer", ["dense", "embedding", "head"])
def test_fake_and_real_tensors_have_one_timeline(layer: str) -> None:
    spec = replace(TINY, layer=layer)
    fake = run_fake(spec)
    assert fake.timeline() == record(filled(spec), make_inputs(spec)).timeline() == run_fake(spec).timeline()


@pytest.mark.parametrize("layer", ["dense", "embedding", "head"])
def test_the_real_allocator_peaks_where_the_recorder_says(layer: str) -> None:
    """Composite norms: a stand-in's inside is not a kernel's."""
    spec = replace(TINY, layer=layer, norm="composite", mask="none", seq_len=128, ffn=96, vocab=4000)
    recording = run_fake(spec)
    allocated = record_allocator(filled(spec), make_inputs(spec), {storage.op for storage in recording.storages})
    assert allocated.workspaces == ()
    assert allocated.peak_bytes == recording.peak_with_parameter_gradients.bytes


@pytest.mark.parametrize("tp", [1, 2, 4])
@pytest.mark.parametrize("form", ["explicit", "laga", "absorbed"])
def test_a_layer_keeps_its_attention_and_what_the_page_lists(tp: int, form: str) -> None:
    spec = replace(V3, tp=tp, sp=2, form=form, kernel="mem-efficient")
    s, u, f = 4096 // 2, 4096 // 2 // tp, 18432 // tp
    attention = run_fake(attention_of(spec)).saved_bytes  # its input is the gathered h
    mlp = s * TOKEN + 4 * s * f * 2  # h, gate and up, silu's, the product
    surround = 2 * (u * TOKEN + u * 4)  # x and r, each with its norm's roots
    assert run_fake(spec).saved_bytes == attention + mlp + surround


@pytest.mark.parametrize("tp", [1, 2])
def test_embedding_and_head_keep_what_the_page_lists(tp: int) -> None:
    embedding, head = (run_fake(replace(V3, tp=tp, layer=layer)) for layer in ("embedding", "head"))
    u, rows = 4096 // tp, 129280 // tp
    assert embedding.saved_bytes == 0
    assert embedding.parameter_gradient_bytes == rows * TOKEN
    assert head.saved_bytes == u * TOKEN + u * 4 + 4096 * TOKEN + 4096 * rows * 4
    logits = 4096 * rows
    # one rank: log-probabilities and two gradients of them; divided: all of forward in fp32 beside the bf16 logits, or
    # in backward the log-probabilities, what is at the targets, the exponentials and their sum, and the positions
    most = logits * 12 if tp == 1 else logits * 16 + 4096 * 8
    assert head.peak_bytes == head.saved_bytes - logits * 4 + most
    assert not head.by_construction


@pytest.mark.parametrize(
    ("change", "saved", "peak"),
    [
        ({}, 1_680_408_576, 2_041_118_720),
        ({"tp": 2}, 915_980_288, 1_096_335_360),
        ({"kernel": "eager", "seq_len": 1024}, 688_013_312, 992_096_256),
        ({"kernel": "eager", "seq_len": 1024, "tp": 2}, 362_950_656, 507_652_096),
    ],
)
def test_deepseek_v3_to_the_byte(change: dict[str, object], saved: int, peak: int) -> None:
    recording = run_fake(replace(V3, **change))  # type: ignore[arg-type]
    assert (recording.saved_bytes, recording.peak_bytes) == (saved, peak)


def test_a_stack_of_layers_saves_as_many_times_as_much() -> None:
    one, three = (run_fake(replace(V3, tp=2, layers=layers)) for layers in (1, 3))
    assert three.saved_bytes == 3 * one.saved_bytes


def test_collectives_around_and_inside_the_attention() -> None:
    called = [(c.kind, c.phase, c.axis, c.group_size) for c in run_fake(replace(V3, sp=4, tp=2)).collectives]
    tp = [("all_gather", "tp", 2), ("reduce_scatter", "tp", 2)]
    sp = [("all_to_all", "sp", 4)] * 4
    one_way = [tp[0], *sp, tp[1], *tp]
    assert [(kind, axis, size) for kind, _, axis, size in called] == [*one_way, *tp, tp[0], *sp, tp[1]]
    assert [phase for _, phase, _, _ in called] == ["forward"] * 8 + ["backward"] * 8


def test_the_vocabulary_is_reduced_three_times_in_forward() -> None:
    called = run_fake(replace(V3, layer="head", tp=2)).collectives
    assert [(c.kind, c.phase) for c in called] == [
        ("all_gather", "forward"),
        *[("all_reduce", "forward")] * 3,
        ("reduce_scatter", "backward"),
    ]
    assert {(c.payload_bytes, c.dtype) for c in called if c.kind == "all_reduce"} == {(4096 * 4, "float32")}


def test_flops_of_the_mlp_are_divided() -> None:
    one, two = (count_flops(replace(V3, tp=tp))["forward"]["mm"] for tp in (1, 2))
    down = 2 * 4096 * 7168 * (1536 + 512 + 64)  # alike on every tp rank
    assert two - down == (one - down) // 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"layer": "sparse"}, "layer 'sparse' is not one of attention, dense, moe, embedding, head"),
        ({"layer": "attention", "tp": 2}, "tp 2 divides a layer, embedding or head"),
        ({"tp": 0}, "tp 0 is not a number of ranks"),
        ({"tp": 3}, "sp 1 x tp 3 does not divide seq_len 4096"),
        ({"tp": 256}, "tp 256 does not divide heads 128"),
        ({"tp": 2, "ffn": 35}, "tp 2 does not divide ffn 35"),
        ({"tp": 2, "sp": 128}, r"sp 128 does not divide 64 heads of a tp rank \(128 / 2\)"),
        ({"layer": "head", "tp": 2, "vocab": 35}, "tp 2 does not divide vocab 35"),
        ({"layer": "head", "layers": 2}, "a network has one head"),
    ],
)
def test_what_has_no_program_is_refused_by_name(change: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(V3, **change)  # type: ignore[arg-type]


@pytest.mark.parametrize("layer", ["dense", "embedding", "head"])
def test_groups_of_another_size_are_refused(layer: str) -> None:
    with pytest.raises(ValueError, match="tp 2 needs a group of that size"):
        make_layer(replace(TINY, layer=layer, tp=2))
