"""What the ops of profile megatron keep, move and make, by construction.

No Transformer Engine runs here: the literals are typed from its source and Megatron-Core's (files, lines and commits
are in mla_cost/language/rules/transformer_engine/), so these tests show that the rules say what was read, not that
it is so.
Bytes are per position of this rank outside tp regions (one of u*b), bf16.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from mla_cost.language.dims import predicates_of
from mla_cost.language.machine import Machine, Tensor
from mla_cost.language.rules import transformer_engine as te
from mla_cost.language.rules.split import cut_up
from mla_cost.language.rules.vocabulary import cross_entropy

BASE = {
    "S": 8,
    "P": 1,
    "t": 2,
    "s": 8,
    "u": 4,
    "b": 3,
    "n": 3,
    "h": 10,
    "d_q": 7,
    "d_c": 6,
    "k": 4,
    "r": 2,
    "v": 5,
    "r_half": 1,
    "f": 9,
    "V": 20,
    "E": 4,
    "e": 8,
    "c": 2,
    "K": 2,
    "R": 24,
    "w": 6,
    "z": 6,
    "g": 11,
    "m": 4,
    "j": 5,
    "D": 20,
    "a": 5,
}
ALONE = BASE | {"t": 1, "u": 8, "j": 10}
POSITIONS = BASE["u"] * BASE["b"]


def machine(base: dict[str, int] = BASE) -> Machine:
    return Machine(predicates_of(base, heads_divided=False), "bf16")


def finish(on: Machine, outputs: Sequence[Tensor]) -> None:
    """Mark what is kept for the backward of these outputs."""
    on.timeline.forward_events = len(on.timeline.events)
    for output in outputs:
        assert output.edge is not None
        on.mark_saved(output.edge)


def backward(on: Machine, output: Tensor) -> None:
    edge, dims, dtype = output.edge, output.dims, output.dtype
    assert edge is not None
    on.backward(edge, lambda: on.new("gradient", dims, dtype) if dims else on.uncounted("1"))


def kept(on: Machine, base: dict[str, int] = BASE) -> dict[str, float]:
    """Kept bytes per position, by name."""
    positions = base["u"] * base["b"]
    return {a.label: a.size.at(base) / positions for a in on.timeline.allocations if a.saved}


def moved(on: Machine) -> list[tuple[str, str, str, int]]:
    return [(c.phase, c.kind, c.axis, c.payload.at(BASE)) for c in on.timeline.collectives]


def weight_gradients(on: Machine) -> list[str]:
    return [a.label for a in on.timeline.allocations if a.kind == "parameter_gradient"]


Linear = Callable[[Machine, str, Tensor, Tensor], Tensor]
LINEARS: list[tuple[Linear, tuple[str, ...], tuple[str, ...], dict[str, float]]] = [
    (te.column_linear, ("u", "b", "h"), ("m+m", "h"), {"x": 20}),
    (te.whole_linear, ("u", "b", "h"), ("d_q", "h"), {"x": 20}),
    (te.row_linear, ("s", "b", "f"), ("h", "f"), {"x": 2 * 18}),
    (te.head_linear, ("u", "b", "h"), ("V", "h"), {"x": 20}),
    (te.joined_linear, ("u", "b", "h+h"), ("j", "h+h"), {"x": 40}),
]


@pytest.mark.parametrize(("linear", "dims", "weight", "expected"), LINEARS, ids=lambda it: getattr(it, "__name__", ""))
def test_a_linear_keeps_its_own_shard_and_makes_no_weight_gradient(linear, dims, weight, expected):
    on = machine()
    y = linear(on, "y", on.input("x", dims), on.parameter("W", weight))
    finish(on, [y])
    assert kept(on) == expected
    backward(on, y)
    assert weight_gradients(on) == []
    assert [item.name for item in on.timeline.persistent].count(te.STAND_IN) == 1


def test_a_column_linear_gathers_in_forward_and_again_in_backward():
    on = machine()
    y = te.column_linear(on, "y", on.input("x", ("u", "b", "h")), on.parameter("W", ("f", "h")))
    assert y.dims == ("s", "b", "f")
    backward(on, y)
    shard, whole = 2 * 4 * 3 * 10, 2 * 8 * 3 * 10
    assert moved(on) == [
        ("forward", "all_gather", "tp", shard),
        ("backward", "all_gather", "tp", shard),
        ("backward", "reduce_scatter", "tp", whole),
    ]
    made = [a.label for a in on.timeline.allocations if a.phase == "backward"]
    assert made == ["gradient", "x gathered", "gradient of x", "gradient of x"]


def test_a_row_linear_scatters_its_output_and_gathers_the_gradient():
    on = machine()
    y = te.row_linear(on, "y", on.input("x", ("s", "b", "f")), on.parameter("W", ("h", "f")))
    assert y.dims == ("u", "b", "h")
    backward(on, y)
    assert moved(on) == [("forward", "reduce_scatter", "tp", 480), ("backward", "all_gather", "tp", 240)]


def test_the_heads_gather_uses_a_buffer_that_stands():
    on = machine()
    y = te.head_linear(on, "y", on.input("x", ("u", "b", "h")), on.parameter("W", ("V", "h")))
    assert [a.label for a in on.timeline.allocations] == ["x", "y"]
    buffers = [item for item in on.timeline.persistent if item.name == te.GATHER_BUFFER]
    assert [(item.outer, item.inner) for item in buffers] == [(("s", "b"), ("h",))]
    backward(on, y)
    assert [kind for _, kind, _, _ in moved(on)] == ["all_gather", "all_gather", "reduce_scatter"]


def test_a_norm_and_linear_keep_input_normed_shard_and_roots():
    on = machine()
    x = on.input("x", ("u", "b", "d_q"))
    y = te.norm_linear(on, "y", x, on.parameter("g", ("d_q",)), on.parameter("W", ("f", "d_q")))
    finish(on, [y])
    assert kept(on) == {"x": 14, "y normed": 14, "y statistics": 4}
    backward(on, y)
    assert weight_gradients(on) == ["gradient of g"]


def test_a_latent_that_is_a_view_is_copied_and_its_source_dies():
    """module/base.py:1639-1640: prepare_forward makes its input contiguous."""
    on = machine()
    given = on.input("x", ("u", "b", "h"))
    both = te.whole_linear(on, "both", given, on.parameter("D", ("d_c+r", "h")))
    latent, _ = cut_up(on, both, 2, [("latent", "d_c"), ("rope", "r")])
    y = te.norm_linear(on, "y", latent, on.parameter("g", ("d_c",)), on.parameter("W", ("n", "k+v", "d_c")))
    finish(on, [y])
    assert kept(on) == {"x": 20, "y input copy": 12, "y normed": 12, "y statistics": 4}


@pytest.mark.parametrize("linear", [te.column_linear, te.whole_linear, te.head_linear], ids=lambda it: it.__name__)
def test_one_tp_rank_moves_nothing_and_keeps_the_same(linear):
    on = machine(ALONE)
    y = linear(on, "y", on.input("x", ("s", "b", "h")), on.parameter("W", ("f", "h")))
    finish(on, [y])
    backward(on, y)
    assert on.timeline.collectives == []
    assert kept(on, ALONE) == {"x": 20}


def test_one_tp_rank_joins_without_gathering():
    on = machine(ALONE)
    y = te.joined_linear(on, "y", on.input("x", ("s", "b", "h+h")), on.parameter("W", ("j", "h+h")))
    assert y.dims == ("s", "b", "h")
    backward(on, y)
    assert on.timeline.collectives == []


def test_fused_rope_keeps_only_tables():
    on = machine()
    kv, rope = on.input("kv", ("s", "b", "n", "k+v")), on.input("rope", ("s", "b", "r"))
    q = te.rope_in_place(on, "q", on.input("q_up", ("s", "b", "n", "k+r")))
    made = te.rope_keys_values(on, (("key", "k+r"), ("value", "v")), kv, rope)
    finish(on, [q, *made])
    assert kept(on) == {}
    assert [tensor.dims[-1] for tensor in made] == ["k+r", "v"]
    assert all(on.is_contiguous(tensor) for tensor in made)


def test_unfused_rope_keeps_a_cosine_and_a_sine_of_each_call():
    """8 r bytes per full-sequence position for query and key: [s r] twice each, whatever the micro-batch."""
    on = machine()
    q = te.rope_with_tables(on, "q", on.input("q_rope", ("s", "b", "n", "r")))
    k = te.rope_with_tables(on, "k", on.input("k_rope", ("s", "b", "r")))
    finish(on, [q, k])
    assert sum(kept(on).values()) * POSITIONS / BASE["s"] == 8 * BASE["r"]


def test_swiglu_keeps_its_input_alone():
    on = machine()
    y = te.swiglu(on, "y", on.input("gate_up", ("s", "b", "f+f")), "f")
    finish(on, [y])
    assert kept(on) == {"gate_up": 2 * 4 * 9}


def test_weighted_swiglu_keeps_the_weights_too():
    on = machine()
    weights = on.input("weights", ("R",))
    y = te.weighted_swiglu(on, "y", on.input("gate_up", ("R", "g+g")), weights, "g")
    finish(on, [y])
    assert {name: size * POSITIONS / BASE["R"] for name, size in kept(on).items()} == {"gate_up": 44, "weights": 2}


def test_the_router_keeps_scores_twice_the_choice_and_its_input():
    on = machine()
    y = te.route(on, "w", on.input("hidden", ("u", "b", "h")), on.parameter("W", ("e", "h")))
    finish(on, [y])
    found = kept(on)
    assert found.pop("hidden") == 20
    assert sum(found.values()) == 4 * 8 + 4 * 8 + 8 * 2 + 4 * 2 + 8
    backward(on, y)
    assert weight_gradients(on) == ["gradient of W"]


def test_rows_of_all_experts_keep_one_map():
    """4 (2 e + 1) bytes per token, shared by the way out and back; 4 per row for each sort; sends keep nothing."""
    on = machine()
    given = on.input("hidden", ("u", "b", "h")), on.input("weights", ("u", "b", "e"))
    rows, row_weights, row_map = te.permute(on, "rows", *given)
    arrived = [te.rows_to_experts(on, "rows", rows), te.rows_to_experts(on, "weights", row_weights)]
    arrived = te.sort_rows(on, "rows", arrived)
    back = te.rows_from_experts(on, "back", te.sort_rows(on, "back", arrived[:1])[0])
    y = te.unpermute(on, "y", back, row_map)
    finish(on, [y])
    per_row = 4 * BASE["R"] / POSITIONS
    assert kept(on) == {"rows map": 4 * (2 * 8 + 1), "rows order": per_row, "back order": per_row}
    assert [(c.kind, c.axis) for c in on.timeline.collectives] == [("all_to_all", "ep")] * 3


def test_deepep_sends_a_token_once_per_rank_and_keeps_a_map_of_its_own_experts():
    on = machine()
    given = on.input("hidden", ("u", "b", "h")), on.input("weights", ("u", "b", "e"))
    rows, _, row_map = te.permute(on, "rows", *te.deepep_dispatch(on, "tokens", *given))
    y = te.deepep_combine(on, "y", te.unpermute(on, "summed", rows, row_map))
    finish(on, [y])
    assert {name: size * POSITIONS / BASE["D"] for name, size in kept(on).items()} == {"rows map": 4 * (2 * 2 + 1)}
    assert [c.payload.at(BASE) for c in on.timeline.collectives] == [2 * 20 * 10] * 2
    assert [c.wire.at(BASE) for c in on.timeline.collectives] == [(4 - 1) * 2 * 5 * 10] * 2


def test_hybridep_writes_rows_where_tokens_arrive_and_keeps_its_handle():
    """Per token 4 bytes for each rank, 4 + 1 for each expert, shared by dispatch and combine; no map, no sort."""
    on = machine()
    given = on.input("hidden", ("u", "b", "h")), on.input("weights", ("u", "b", "e"))
    rows, row_weights, *handle = te.hybridep_dispatch(on, "rows", *given)
    assert (rows.dims, row_weights.dims) == (("R", "h"), ("R",))
    y = te.hybridep_combine(on, "y", rows, handle)
    finish(on, [y])
    assert kept(on) == {"rows ranks map": 4 * 4, "rows experts map": 4 * 8, "rows routing map": 8}
    calls = [(c.kind, c.payload.at(BASE), c.wire.at(BASE)) for c in on.timeline.collectives]
    tokens = ("all_to_all", 2 * 20 * 10, (4 - 1) * 2 * 5 * 10)
    assert calls == [("all_gather", POSITIONS * 8, (4 - 1) * POSITIONS * 8), tokens, tokens]
    backward(on, y)
    assert [(c.kind, c.payload.at(BASE)) for c in on.timeline.collectives[3:]] == [tokens[:2]] * 2


def test_the_routing_of_all_ranks_dies_with_the_preprocessing_of_hybridep():
    on = machine()
    te.hybridep_dispatch(on, "rows", on.input("hidden", ("u", "b", "h")), on.input("weights", ("u", "b", "e")))
    gathered, *others = (a for a in on.timeline.allocations if a.dtype != "bf16")
    assert gathered.size.at(BASE) == POSITIONS * 4 * 8
    rows = next(a for a in on.timeline.allocations if a.label == "rows")
    assert gathered.freed is not None
    assert others[0].made < gathered.freed < rows.made


def test_grouped_rows_keep_their_rows():
    on = machine()
    y = te.grouped_rows(on, "y", on.input("rows", ("R", "h")), on.parameter("W", ("c", "g+g", "h")))
    finish(on, [y])
    assert kept(on) == {"rows": 2 * 10 * BASE["R"] / POSITIONS}
    backward(on, y)
    assert weight_gradients(on) == []


Loss = Callable[[Machine, str, Tensor], Tensor]
LOSSES: list[tuple[Loss, str, int, int]] = [
    # what is kept, its bytes per number of the vocabulary, and the bytes that backward makes per number
    (te.cross_entropy_in_place, "logits", 2, 0),
    (te.cross_entropy_fp32, "loss gradient", 4, 2),
    (cross_entropy, "loss probabilities", 4, 2),
    (te.cross_entropy_compiled, "loss probabilities", 4, 4 + 2),
]


@pytest.mark.parametrize(("loss", "name", "width", "made"), LOSSES, ids=lambda it: getattr(it, "__name__", ""))
def test_each_loss_keeps_one_tensor_over_the_vocabulary(loss, name, width, made):
    on = machine()
    found = loss(on, "loss", on.input("logits", ("s", "b", "V")))
    finish(on, [found])
    full = BASE["s"] * BASE["b"] * BASE["V"]
    assert kept(on) == {name: width * full / POSITIONS}
    backward(on, found)
    assert sum(a.size.at(BASE) for a in on.timeline.allocations if a.phase == "backward") == made * full
