"""Attention that exchanges keys and values in its own call, by construction: literals typed from Transformer Engine.

NVIDIA/TransformerEngine@d0067d0da6cb, lines in mla_cost/language/rules/context_parallel.py. Sizes are bytes.
"""

from __future__ import annotations

import pytest

from mla_cost.language.dims import base_values, predicates_of
from mla_cost.language.machine import Machine, Tensor
from mla_cost.language.rules.context_parallel import gathered_attention, ring_attention

RANKS, LOCAL, BATCH, HEADS, QK, V = 4, 6, 2, 3, 4 + 2, 5
VALUES = {"S": RANKS * LOCAL, "P": RANKS, "b": BATCH, "n": HEADS, "h": 10, "d_q": 7, "d_c": 6, "k": 4, "r": 2, "v": V}
BASE = base_values(VALUES, heads_divided=False)
ROWS = LOCAL * BATCH * HEADS
Q, K, O, LSE = 2 * ROWS * QK, 2 * ROWS * QK, 2 * ROWS * V, 4 * ROWS
KV = K + O


def run(attention) -> tuple[Machine, Tensor]:
    on = Machine(predicates_of(BASE, heads_divided=False), "bf16")
    widths = (("q", "k+r"), ("key", "k+r"), ("value", "v"))
    given = [on.input(name, ("s", "b", "n", width)) for name, width in widths]
    y = attention(on, "o", *given)
    del given
    on.timeline.forward_events = len(on.timeline.events)
    assert y.edge is not None
    on.mark_saved(y.edge)
    return on, y


def sizes(on: Machine, **where) -> dict[str, int]:
    asked = [a for a in on.timeline.allocations if all(getattr(a, name) == value for name, value in where.items())]
    return {a.label: a.size.at(BASE) for a in asked}


def back(on: Machine, y: Tensor) -> None:
    edge, dims = y.edge, y.dims
    del y
    assert edge is not None
    on.backward(edge, lambda: on.new("gradient of o", dims))


def sent(on: Machine, phase: str) -> list[tuple[str, str, int, int]]:
    return [
        (c.kind, c.tensor, c.payload.at(BASE), c.wire.at(BASE)) for c in on.timeline.collectives if c.phase == phase
    ]


def most_alive(on: Machine, phase: str) -> int:
    """Bytes alive at most, the inputs included."""
    moments = [at for at, event in enumerate(on.timeline.events) if event.phase == phase]
    return max(sum(a.size.at(BASE) for a in on.timeline.allocations if a.alive_at(at)) for at in moments)


def test_a_ring_keeps_what_came_last_and_not_its_own_keys_and_values():
    on, _ = run(ring_attention)
    assert sizes(on, saved=True) == {"q": Q, "key and value of the last step": KV, "o": O, "log-sum-exp": LSE}


def test_a_ring_holds_all_steps_until_forward_returns():
    """Inputs, a buffer and an output for each of the ranks, the joined output, statistics of the steps and in all."""
    on, _ = run(ring_attention)
    assert most_alive(on, "forward") == Q + K + O + RANKS * (KV + O + LSE) + O + LSE


def test_a_ring_sends_keys_and_values_round_and_back_with_their_gradients():
    on, y = run(ring_attention)
    round_once = (RANKS - 1) * KV
    assert sent(on, "forward") == [("point_to_point", "key and value", round_once, round_once)]
    back(on, y)
    assert sent(on, "backward") == [
        ("point_to_point", "key and value", round_once, round_once),
        ("point_to_point", "gradient of key and value", round_once, round_once),
    ]


def test_two_buffers_go_round_in_backward_and_one_is_the_gradient():
    on, y = run(ring_attention)
    back(on, y)
    del y
    buffers = [a for a in on.timeline.allocations if a.phase == "backward" and a.size.at(BASE) == 2 * KV]
    assert [a.freed is None for a in buffers] == [False, True]  # the one that arrived is both gradients
    kept = Q + KV + O + LSE
    assert most_alive(on, "backward") == kept + O + Q + 2 * 2 * KV + (Q + K + O)


def test_a_gather_keeps_local_keys_and_values():
    on, _ = run(gathered_attention)
    halves = {f"log-sum-exp of the {step} half": LSE // 2 for step in ("first", "second")}
    assert sizes(on, saved=True) == {"q": Q, "key": K, "value": O, "o": O, **halves}


def test_a_gather_is_put_in_order_by_a_copy():
    """Most is alive where the keys are copied: what was gathered of both, and the copy; or in the steps."""
    on, _ = run(gathered_attention)
    inputs, everywhere = Q + K + O, RANKS * (K + O)
    copying = inputs + everywhere + RANKS * K
    attending = inputs + everywhere + 3 * O + LSE
    assert most_alive(on, "forward") == max(copying, attending)


def test_a_gather_repeats_itself_and_scatters_sums():
    on, y = run(gathered_attention)
    gathers = [("all_gather", name, size, (RANKS - 1) * size) for name, size in (("key", K), ("value", O))]
    assert sent(on, "forward") == gathers
    back(on, y)
    scattered = [("key", K), ("value", O)]
    assert sent(on, "backward") == [
        *gathers,
        *(("reduce_scatter", f"gradient of {name}", RANKS * size, (RANKS - 1) * size) for name, size in scattered),
    ]


def test_two_steps_of_a_gather_see_all_positions_and_one_chunk():
    on, y = run(gathered_attention)
    back(on, y)
    del y
    steps = [a.size.at(BASE) for a in on.timeline.allocations if a.label.endswith("of a step")]
    assert sum(steps) == Q + (K + O) * (2 * RANKS + 1) // 2
    kept = Q + K + 2 * O + LSE
    attending = kept + O + Q + 2 * RANKS * (K + O) + sum(steps)
    assert most_alive(on, "backward") == attending + RANKS * K  # the sums of the keys in two orders


@pytest.mark.parametrize("attention", [ring_attention, gathered_attention])
def test_the_work_is_that_of_all_keys(attention):
    on, y = run(attention)
    back(on, y)
    forward, backward = on.timeline.flops
    scores, output = (2 * ROWS * RANKS * LOCAL * width for width in (QK, V))
    assert forward.needed.at(BASE) == scores + output
    assert (backward.needed.at(BASE), backward.recomputed.at(BASE)) == (2 * (scores + output), scores)


@pytest.mark.parametrize("attention", [ring_attention, gathered_attention])
def test_only_gradients_outlive_backward(attention):
    on, y = run(attention)
    back(on, y)
    del y
    left = {a.label for a in on.timeline.allocations if a.freed is None and a.phase == "backward"}
    assert all("gradient" in label for label in left)
    assert all(a.freed is not None for a in on.timeline.allocations if a.phase == "forward" and not a.saved)
