"""Norm and softmax against torch: what they keep, and that their results lie row-major."""

from __future__ import annotations

import pytest

from mla_cost.language.rules.norm import composite_norm, norm
from mla_cost.language.rules.softmax import softmax
from mla_cost.language.rules.split import split
from tests.torch.rules.harness import VALUES, Operand, check, each_value, torch, values


def fused_norm(x, weight):
    """RMSNorm as one op (docs/decisions/0001)."""
    from mla_cost.checks.reference.norm import _FusedRMSNorm

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


def plain_norm(x, weight):
    """RMSNorm as torch composes it where it has no fused kernel."""
    return torch.nn.functional.rms_norm(x, (x.size(-1),), weight, 1e-6)


@each_value(*VALUES, values(d_c=1))
@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
def test_composite_norm(base, dtype):
    def in_rules(machine, x, weight):
        return composite_norm(machine, "normed", x, weight)

    operands = [Operand("c", "s b d_c"), Operand("g", "d_c", "parameter")]
    check(base, operands, lambda _, x, weight: plain_norm(x, weight), in_rules, dtype=dtype)


@each_value()
@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
def test_composite_norm_of_a_part(base, dtype):
    """In bf16 the fp32 copy is kept and the whole is not; in fp32 the part itself is kept and pins the whole."""

    def in_torch(size, x, weight):
        c, rope = x.split([size.d_c, size.r], -1)
        return plain_norm(c, weight), rope

    def in_rules(machine, x, weight):
        c, rope = split(machine, x, [("c", "d_c"), ("k_rope", "r")])
        return [composite_norm(machine, "normed", c, weight), rope]

    operands = [Operand("x", "s b d_c+r"), Operand("g", "d_c", "parameter")]
    check(base, operands, in_torch, in_rules, dtype=dtype)


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
