"""A layer with experts: what each op allocates and keeps, a literal mixture, and the same on tp x sp x ep ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.functional import linear, rms_norm, silu

from mla_cost.checks.reference import DIMS, Recording, Spec, count_flops, initialise, record, run_fake
from mla_cost.checks.reference.experts import (
    Experts,
    Routing,
    by_expert,
    by_source,
    from_experts,
    grouped_linear,
    permute,
    route,
    router,
    to_experts,
    unpermute,
)
from mla_cost.checks.reference.fake import fake_groups
from mla_cost.checks.reference.layer import MoeLayer, attention_of, make_inputs, make_layer
from mla_cost.checks.reference.norm import EPSILON
from mla_cost.checks.reference.ranks import RankRun, run_ranks

TINY = Spec(
    dims=DIMS["tiny"],
    seq_len=16,
    sp=1,
    micro_batch=2,
    dtype="fp32",
    mask="tensor",
    layer="moe",
    experts=8,
    experts_per_token=3,
    expert_ffn=24,
    shared_ffn=48,
)
V3 = Spec(layer="moe", kernel="flash", seq_len=4096, sp=1)
BOUND = 1e-5  # fp32: largest difference over the largest magnitude of the single rank's tensor
SHARDED = [
    replace(TINY, **change)
    for change in (
        {"ep": 2},  # data-parallel ranks
        {"ep": 2, "layers": 2, "shared_ffn": 0},
        {"tp": 2, "ep": 2},
        {"sp": 2, "ep": 2, "form": "laga"},
        {"sp": 2, "tp": 2, "ep": 2},  # two groups, each with all experts
        {"tp": 2, "ep": 4},
        {"etp": 2},  # data-parallel ranks that share each expert
        {"tp": 2, "etp": 2},
        {"tp": 2, "ep": 2, "etp": 2},
        {"sp": 2, "ep": 2, "etp": 2, "form": "laga"},
    )
]
U, B, H, E, K = 4, 2, 6, 5, 3
Shape = tuple[int, ...]


def rank_name(spec: Spec) -> str:
    degrees = f"sp{spec.sp}-tp{spec.tp}-ep{spec.ep}-etp{spec.etp}"
    return f"{spec.form}-{degrees}-x{spec.layers}-shared{spec.shared_ffn}"


@pytest.fixture(scope="module")
def runs() -> dict[Spec, RankRun]:
    specs = list(dict.fromkeys([*SHARDED, *(spec.alone for spec in SHARDED)]))
    return dict(zip(specs, run_ranks(specs), strict=True))


@pytest.mark.xdist_group("ranks")
@pytest.mark.parametrize("spec", SHARDED, ids=rank_name)
class TestRanks:
    def test_sharded_equals_single(self, spec: Spec, runs: dict[Spec, RankRun]) -> None:
        """Output, input gradient and every parameter's; the experts' are put together over ep."""
        whole = runs[spec.alone]
        differences = runs[spec].differences(whole)
        assert differences.keys() == whole.tensors.keys()
        assert max(differences.values()) < BOUND, differences

    def test_every_rank_calls_what_the_fake_groups_saw(self, spec: Spec, runs: dict[Spec, RankRun]) -> None:
        """All the same but for how many rows of real routing arrive, and go back."""
        expected = [_without_rows(call) for call in run_fake(spec).collectives]
        called = runs[spec].collectives
        assert [[_without_rows(call) for call in of_rank] for of_rank in called] == [expected] * spec.ranks

    def test_routing_is_not_balanced_and_no_row_is_lost(self, spec: Spec, runs: dict[Spec, RankRun]) -> None:
        if spec.ep == 1:
            pytest.skip("no row leaves its rank for another's expert")
        ways = [[c for c in of_rank if c.axis == "ep"] for of_rank in runs[spec].collectives]
        sent = {(out.payload_bytes, back.received_bytes) for out, back, *_ in ways}
        rows = spec.seq_len * spec.micro_batch // (spec.sp * spec.tp) * spec.experts_per_token
        assert sent == {(rows * 32 * 4, rows * 32 * 4)}
        received = [out.received_bytes for out, *_ in ways]
        assert len(set(received)) > 1
        assert sum(received) == spec.ranks * rows * 32 * 4


def _without_rows(call: Any) -> tuple[object, ...]:
    ours = () if call.axis in ("ep", "etp") else (call.payload_bytes, call.received_bytes, call.shape)
    return (call.kind, call.phase, call.axis, call.group_size, call.dtype, *ours)


# One rank against a literal mixture: every expert on every position, masked.


def mixture(h: Tensor, weights: Mapping[str, Tensor], k: int) -> Tensor:
    """The sum over all experts of weight x expert(h), where the weight of those not chosen is 0."""
    scores = linear(h, weights["experts.router.weight"]).sigmoid()
    masked = torch.where(scores >= scores.sort(-1, descending=True).values[..., k - 1 : k], scores, 0)
    shares = masked / masked.sum(-1, keepdim=True)
    out = torch.zeros_like(h)
    for expert, (fc1, fc2) in enumerate(zip(weights["experts.fc1"], weights["experts.fc2"], strict=True)):
        gate, up = linear(h, fc1).chunk(2, -1)
        out = out + shares[..., expert, None] * linear(silu(gate) * up, fc2)
    return out


def randoms(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(1)).to(dtype).requires_grad_()


def filled(spec: Spec) -> nn.Module:
    layer = make_layer(spec)
    initialise(layer)
    return layer


def close(ours: Tensor, theirs: Tensor, *leaves: Tensor) -> None:
    gradient = torch.randn(ours.shape, generator=torch.Generator().manual_seed(2))
    mine, others = (torch.autograd.grad(out, leaves, gradient) for out in (ours, theirs))
    for one, other in zip((ours, *mine), (theirs, *others), strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("k", [1, 3, 8])
def test_routed_experts_are_a_masked_mixture(k: int) -> None:
    layer = filled(replace(TINY, experts_per_token=k))
    assert isinstance(layer, MoeLayer)
    weights, h = dict(layer.named_parameters()), randoms(16, 2, 32)
    leaves = [h, weights["experts.fc1"], weights["experts.fc2"]]
    if k > 1:  # one weight is always 1: both gradients are 0, but for rounding
        leaves.append(weights["experts.router.weight"])
    close(layer.experts(h), mixture(h, weights, k), *leaves)


@pytest.mark.parametrize("shared", [0, 48])
def test_the_layer_adds_routed_and_shared_experts_to_the_residual(shared: int) -> None:
    layer, x = filled(replace(TINY, shared_ffn=shared)), randoms(16, 2, 32)
    assert isinstance(layer, MoeLayer)
    weights = dict(layer.named_parameters())
    middle = x + layer.attention(rms_norm(x, (32,), weights["attention_norm.weight"], EPSILON))
    h = rms_norm(middle, (32,), weights["mlp_norm.weight"], EPSILON)
    expected = middle + mixture(h, weights, 3)
    if shared:
        gate, up = linear(h, weights["shared.fc1.weight"]).chunk(2, -1)
        expected = expected + linear(silu(gate) * up, weights["shared.fc2.weight"])
    close(layer(x), expected, x, *weights.values())


def test_an_expert_that_nobody_chose_has_a_gradient_of_zeros() -> None:
    experts = Experts(replace(TINY, experts_per_token=1))
    initialise(experts)
    x = randoms(1, 1, 32)
    experts(x).sum().backward()
    assert experts.fc1.grad is not None
    assert [bool(gradient.any()) for gradient in experts.fc1.grad].count(True) == 1


# Where rows go.


def test_reordering_puts_the_rows_of_an_expert_together_and_back() -> None:
    routing = Routing(sent=[], received=[1, 2, 0, 2, 0, 1], ranks=3)  # three ranks, two experts
    rows = torch.tensor([[10.0], [11], [12], [21], [22], [31]])  # tens: the rank; 10 was for expert 0
    ordered = by_expert(rows, routing)
    assert ordered.flatten().tolist() == [10, 11, 12, 21, 22, 31]
    assert (routing.per_expert, routing.received_from) == ([1, 5], [3, 2, 1])
    routing = replace(routing, received=[1, 2, 1, 1, 1, 0])
    ordered = by_expert(rows, routing)
    assert ordered.flatten().tolist() == [10, 21, 31, 11, 12, 22]
    assert torch.equal(by_source(ordered, routing), rows)
    gradient = torch.autograd.grad(by_expert(rows.requires_grad_(), routing), rows, ordered)[0]
    assert torch.equal(gradient, rows)


def test_real_tensors_are_counted_and_fake_ones_balanced() -> None:
    chosen = torch.tensor([[[0, 3]], [[0, 1]], [[3, 0]]])
    assert route(chosen, 4, None) == Routing([3, 1, 0, 2], [3, 1, 0, 2], 1)
    with FakeTensorMode():
        assert route(torch.empty(3, 1, 2, dtype=torch.int64), 4, None).sent == [2, 2, 1, 1]


@pytest.mark.parametrize("fake", [True, False])
def test_fake_groups_are_balanced_whatever_the_tensors(fake: bool) -> None:
    with fake_groups(1, 1, 4) as groups, FakeTensorMode() if fake else nullcontext():
        routing = route(torch.zeros(4, 2, 4, dtype=torch.int64), 8, groups.ep)
    assert routing.sent_to == routing.received_from == [8] * 4
    assert routing.per_expert == [16, 16]


# What each op allocates and keeps.


@pytest.fixture(params=["real", "fake"])
def mode(request: pytest.FixtureRequest) -> Iterator[str]:
    with FakeTensorMode() if request.param == "fake" else nullcontext():
        yield request.param


def made(recording: Recording, phase: str) -> list[tuple[Shape, str]]:
    storages = (storage for storage in recording.storages if storage.phase == phase)
    return [(storage.shape, storage.dtype) for storage in storages if storage.op not in ("input", "ones")]


def kept(recording: Recording) -> list[tuple[Shape, str]]:
    return [(storage.shape, storage.dtype) for storage in recording.saved]


def chosen() -> Tensor:
    return torch.arange(U * B * K).view(U, B, K) % E


def bf16(*shape: int) -> Tensor:
    return randoms(*shape, dtype=torch.bfloat16)


ROUTING = Routing(sent=[U * B * K // 2] * 2, received=[U * B * K // 4] * 4, ranks=2)
ROWS = U * B * K
MAP, ALL, PLACES = ((U, B, K), "int32"), ((U, B, K, H), "bfloat16"), ((U, B, H), "bfloat16")
RECEIVED = ((ROWS, H), "bfloat16")
FC1 = SimpleNamespace(shape=(4, 10, H), counts=[ROWS // 4] * 4)


@pytest.mark.usefixtures("mode")
@pytest.mark.parametrize(
    ("op", "inputs", "forward", "saved", "backward"),
    [
        pytest.param(
            lambda logits: router(logits, K)[0],
            [((U, B, E), "bfloat16")],
            [((U, B, E), "float32"), ((U, B, K), "float32"), ((U, B, K), "int64")],
            [((U, B, E), "float32"), ((U, B, K), "float32"), ((U, B, K), "int64")],
            [((U, B, E), "bfloat16")],
            id="router",
        ),
        pytest.param(permute, [PLACES, "chosen"], [ALL, MAP], [MAP], [PLACES], id="permute"),
        pytest.param(
            unpermute,
            [ALL, ((U, B, K), "float32"), "chosen"],
            [PLACES, MAP],
            [ALL, ((U, B, K), "float32"), MAP],
            [ALL, ((U, B, K), "float32")],
            id="unpermute",
        ),
        pytest.param(lambda r: by_expert(r, ROUTING), [RECEIVED], [RECEIVED], [], [RECEIVED], id="by_expert"),
        pytest.param(lambda r: by_source(r, ROUTING), [RECEIVED], [RECEIVED], [], [RECEIVED], id="by_source"),
        pytest.param(
            lambda rows, w: grouped_linear(rows, w, FC1.counts),
            [RECEIVED, (FC1.shape, "bfloat16")],
            [((ROWS, 10), "bfloat16")],
            [RECEIVED, (FC1.shape, "bfloat16")],
            [(FC1.shape, "bfloat16"), RECEIVED],
            id="grouped_linear",
        ),
        pytest.param(
            lambda rows, w: grouped_linear(rows, w, FC1.counts),
            [ALL, (FC1.shape, "bfloat16")],
            [((U, B, K, 10), "bfloat16")],
            [ALL, (FC1.shape, "bfloat16")],
            [(FC1.shape, "bfloat16"), ALL],
            id="grouped_linear-of-positions",
        ),
    ],
)
def test_each_op_allocates_and_keeps_what_the_page_states(
    op: Callable[..., Tensor],
    inputs: list[Any],
    forward: list[tuple[Shape, str]],
    saved: list[tuple[Shape, str]],
    backward: list[tuple[Shape, str]],
) -> None:
    operands = [
        chosen() if given == "chosen" else randoms(*given[0], dtype=getattr(torch, given[1])) for given in inputs
    ]
    recording = record(op, operands)
    assert made(recording, "forward") == forward
    assert kept(recording) == saved
    assert made(recording, "backward") == backward


@pytest.mark.usefixtures("mode")
def test_permute_holds_neither_its_input_nor_the_choice() -> None:
    recording = record(lambda h, c: permute(h * 1, c * 1), [bf16(U, B, H), chosen()])
    assert [storage.op for storage in recording.kept] == ["input", "input", "permute"]
    assert kept(recording) == [MAP]


@pytest.mark.parametrize("exchange", ["to_experts", "from_experts"])
def test_an_exchange_allocates_its_receive_buffer_each_way(exchange: str) -> None:
    with fake_groups(1, 1, 2) as groups, FakeTensorMode():
        group = groups.ep
        assert group is not None
        if exchange == "to_experts":
            recording = record(lambda rows: to_experts(rows, ROUTING, group), [bf16(U, B, K, H)])
        else:
            recording = record(lambda rows: from_experts(rows, ROUTING, (U, B, K, H), group), [bf16(ROWS, H)])
    there, back = (RECEIVED, ALL) if exchange == "to_experts" else (ALL, RECEIVED)
    assert (made(recording, "forward"), kept(recording), made(recording, "backward")) == ([there], [], [back])
    calls = [(c.kind, c.axis, c.phase, c.payload_bytes, c.received_bytes) for c in recording.collectives]
    assert calls == [("all_to_all", "ep", phase, ROWS * H * 2, ROWS * H * 2) for phase in ("forward", "backward")]


@pytest.mark.usefixtures("mode")
@pytest.mark.parametrize(("dims", "copies"), [((0, 1, 2), 0), ((2, 0, 1), 0), ((1, 0, 2), 1)])
def test_a_gradient_is_copied_only_where_its_rows_do_not_merge(dims: Shape, copies: int) -> None:
    weight = bf16(1, 10, H)
    recording = record(
        lambda rows: grouped_linear(rows, weight, [U * B]).permute(*dims), [bf16(U, B, H)], parameters=[weight]
    )
    assert [storage.op for storage in recording.storages].count("clone") == copies


# The layer.


@pytest.mark.parametrize("ep", [1, 4])
def test_the_experts_run_the_pages_lines(ep: int) -> None:
    with fake_groups(1, 1, ep) as groups, FakeTensorMode():
        recording = record(Experts(replace(TINY, ep=ep), groups.ep), [torch.ones(16, 2, 32, requires_grad=True)])
    there, back = (["new_empty", "by_expert"], ["by_source", "new_empty"]) if ep > 1 else ([], [])
    product = ["grouped_linear", "silu", "mul", "grouped_linear"]
    assert ops(recording, "forward") == ["mm", "router", "permute", *there, *product, *back, "unpermute"]
    product = ["grouped_linear_backward", "mul", "mul", "silu_backward", "cat", "grouped_linear_backward"]
    ends = ["permute_backward", "router_backward", "mm", "add"]
    assert ops(recording, "backward") == ["ones", "unpermute_backward", *there, *product, *back, *ends]


def ops(recording: Recording, phase: str) -> list[str]:
    """Ops that allocate, parameters' gradients left out; an op with several results once."""
    made = [s for s in recording.storages if s.phase == phase and s.role == "intermediate"]
    several = ("router", "permute", "unpermute", "unpermute_backward")
    return [s.op for i, s in enumerate(made) if s.op not in several or i == 0 or made[i - 1].op != s.op]


@pytest.mark.parametrize(("change", "degrees"), [({}, (1, 1, 1)), ({"shared_ffn": 0}, (1, 1, 8)), ({}, (2, 2, 8))])
def test_a_layer_keeps_its_attention_and_what_the_page_lists(
    change: dict[str, int], degrees: tuple[int, int, int]
) -> None:
    sp, tp, ep = degrees
    spec = replace(V3, sp=sp, tp=tp, ep=ep, **change)  # type: ignore[arg-type]
    token, s, u = 7168 * 2, 4096 // sp, 4096 // sp // tp
    attention = run_fake(attention_of(spec)).saved_bytes  # its input is the gathered h
    surround = 2 * (u * token + u * 4) + u * token  # x and r, each with its norm's roots; h for the router
    routed = u * 256 * 4 + u * 8 * (4 + 8 + 4 + 4)  # scores, weights, chosen and two maps
    rows = u * 8 * (2 * token + 4 * 2048 * 2)  # rows in and out, gate and up, silu's, the product
    shared = 4 * s * spec.shared_ffn // tp * 2
    if tp > 1 and spec.shared_ffn:
        shared += s * token
    recording = run_fake(spec)
    assert recording.saved_bytes == attention + surround + routed + rows + shared
    assert set(recording.kept) == set(recording.saved)
    assert recording.by_construction


def test_fake_and_real_tensors_have_one_timeline() -> None:
    fake = run_fake(TINY)
    assert fake.timeline() == record(filled(TINY), make_inputs(TINY)).timeline() == run_fake(TINY).timeline()


@pytest.mark.parametrize(
    ("change", "saved", "peak"),
    [
        ({}, 2_624_782_336, 3_145_007_104),
        ({"ep": 8}, 2_624_782_336, 3_145_007_104),
        ({"tp": 2, "ep": 8}, 1_417_527_296, 1_618_919_424),
    ],
)
def test_deepseek_v3_to_the_byte(change: dict[str, int], saved: int, peak: int) -> None:
    recording = run_fake(replace(V3, **change))  # type: ignore[arg-type]
    assert (recording.saved_bytes, recording.peak_bytes) == (saved, peak)
    own = 3 * 256 // change.get("ep", 1) * 7168 * 2048 * 2
    gradients = [s.bytes for s in recording.storages if s.role == "parameter_gradient" and len(s.shape) == 3]
    assert sum(gradients) == own


def test_collectives_around_and_inside_the_experts() -> None:
    called = run_fake(replace(V3, tp=2, ep=8)).collectives
    tp, ep = [("all_gather", "tp", 2), ("reduce_scatter", "tp", 2)], [("all_to_all", "ep", 8)] * 2
    order = [(c.kind, c.axis, c.group_size) for c in called]
    assert order == [*tp, *ep, *tp, *tp, *ep, *tp]
    assert {c.payload_bytes for c in called if c.axis == "ep"} == {2048 * 8 * 7168 * 2}


def test_flops_of_the_experts_do_not_depend_on_their_division() -> None:
    for ep in (1, 8):
        flops = count_flops(replace(V3, ep=ep))
        assert flops["forward"]["grouped_linear"] == 2 * 4096 * 8 * 3 * 2048 * 7168
        assert flops["backward"]["grouped_linear_backward"] == 2 * flops["forward"]["grouped_linear"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"layer": "dense", "ep": 2}, "ep 2 divides the experts of layer moe: dense has none"),
        ({"ep": 0}, "ep 0 is not a number of ranks"),
        ({"ep": 3}, "ep 3 does not divide experts 256"),
        ({"experts_per_token": 257}, "experts_per_token 257 is not between 1 and experts 256"),
        ({"tp": 2, "sp": 2, "ep": 6, "experts": 12}, "neither of ep 6 and sp 2 x tp 2 is a multiple of the other"),
        ({"tp": 2, "shared_ffn": 35}, "tp 2 does not divide shared_ffn 35"),
    ],
)
def test_what_has_no_program_is_refused_by_name(change: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(V3, **change)  # type: ignore[arg-type]


def test_groups_of_another_size_are_refused() -> None:
    with pytest.raises(ValueError, match="ep 2 needs a group of that size"):
        make_layer(replace(TINY, ep=2))
