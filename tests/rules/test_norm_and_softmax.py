"""Norm and softmax against torch: what they keep, and that their results lie row-major."""

from __future__ import annotations

import pytest

from mla_cost.rules.norm import norm
from mla_cost.rules.softmax import softmax
from mla_cost.rules.split import split
from tests.rules.harness import Operand, check, each_value, torch


def fused_norm(x, weight):
    """RMSNorm as one op (docs/decisions/0001)."""
    from mla_cost.reference.norm import _FusedRMSNorm

    return _FusedRMSNorm.apply(x, weight)


@each_value()
def test_norm(base):
    def in_rules(machine, x, weight):
        return norm(machine, "normed", x, weight)

    operands = [Operand("c", "s b d_c"), Operand("g", "d_c", "parameter")]
    check(base, operands, lambda _, x, weight: fused_norm(x, weight), in_rules)


@each_value()
def test_norm_of_a_part_pins_the_whole(base):
    def in_torch(size, x, weight):
        c, rope = x.split([size.d_c, size.r], -1)
        return fused_norm(c, weight), rope

    def in_rules(machine, x, weight):
        c, rope = split(machine, x, [("c", "d_c"), ("k_rope", "r")])
        return [norm(machine, "normed", c, weight), rope]

    check(base, [Operand("x", "s b d_c+r"), Operand("g", "d_c", "parameter")], in_torch, in_rules)


@each_value()
@pytest.mark.parametrize("dims", ["b l S S", "b S l S"])
@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
def test_softmax(base, dims, dtype):
    def in_torch(_, x):
        if dtype == "bf16":
            return torch.softmax(x, -1)
        probabilities = torch.softmax(x, -1, dtype=torch.float32)
        return probabilities.to(x.dtype)

    def in_rules(machine, x):
        return softmax(machine, "probabilities", x, dtype)

    check(base, [Operand("scores", dims)], in_torch, in_rules)
