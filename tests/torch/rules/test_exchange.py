"""Exchanges against the executor's collectives on one rank of a fake process group: buffers, copies and payloads."""

from __future__ import annotations

import pytest

from mla_cost.language.rules import exchange
from mla_cost.language.rules.elementwise import multiply
from mla_cost.language.rules.split import split
from tests.torch.rules.harness import Operand, check, each_value, ranks

SHARDED = Operand("x", "s b n v")
HEADS = Operand("x", "S b l v")


def run(base, operand, name):
    from mla_cost.checks.reference import exchange as collectives

    with ranks(base["P"]) as group:
        check(
            base,
            [operand],
            lambda _, x: getattr(collectives, name)(x, group),
            lambda machine, x: getattr(exchange, name)(machine, "y", x),
        )


@each_value()
def test_sequence_to_heads(base):
    run(base, SHARDED, "sequence_to_heads")


@each_value()
def test_heads_to_sequence(base):
    run(base, HEADS, "heads_to_sequence")


@each_value()
@pytest.mark.parametrize("dims", ["s b d_c+r", "s b n k+r"])
def test_gather(base, dims):
    run(base, Operand("x", dims), "gather")


@each_value()
def test_an_exchange_of_a_view_makes_a_storage_of_its_own(base):
    """V, a view that pins the up-projection, is free of it once it has been exchanged."""
    from mla_cost.checks.reference.exchange import sequence_to_heads

    with ranks(base["P"]) as group:

        def in_torch(size, kv):
            nope, value = kv.split([size.k, size.v], -1)
            return nope * 2, sequence_to_heads(value, group)

        def in_rules(machine, kv):
            nope, value = split(machine, kv, [("k_nope", "k"), ("value", "v")])
            return [multiply(machine, "double", nope), exchange.sequence_to_heads(machine, "value", value)]

        check(base, [Operand("kv", "s b n k+v")], in_torch, in_rules)
