"""Ops that make one new tensor element by element, and what happens where gradients meet, against torch."""

from __future__ import annotations

import pytest

from mla_cost.language.rules.elementwise import add, cast, mask, multiply, negate
from mla_cost.language.rules.rope import rope
from mla_cost.language.rules.split import split
from tests.torch.rules.harness import Operand, check, each_value, torch

X = Operand("x", "s b n v")
SCORES = {"bnst": "b l S S", "bsnt": "b S l S"}


@each_value()
def test_scale(base):
    check(base, [X], lambda _, x: x * 0.25, lambda machine, x: multiply(machine, "y", x))


@each_value()
def test_scale_of_a_slice(base):
    """A slice has gaps; what is made from it has none, and keeps the order of its strides."""

    def in_torch(size, q):
        return [part * 2 for part in q.split([size.k, size.r], -1)]

    def in_rules(machine, q):
        parts = split(machine, q, [("q_nope", "k"), ("q_rope", "r")])
        return [multiply(machine, part.label, part) for part in parts]

    check(base, [Operand("q", "s b n k+r")], in_torch, in_rules)


@each_value()
def test_negate(base):
    check(base, [X], lambda _, x: -x, lambda machine, x: negate(machine, "y", x))


@each_value()
@pytest.mark.parametrize("dtypes", [("bf16", "fp32"), ("fp32", "bf16"), ("bf16", "bf16")], ids=" to ".join)
def test_cast(base, dtypes):
    there, back = dtypes
    wanted = {"bf16": torch.bfloat16, "fp32": torch.float32}[back]
    check(base, [X], lambda _, x: x.to(wanted), lambda machine, x: cast(machine, "y", x, back), dtype=there)


@each_value()
@pytest.mark.parametrize("letters", SCORES)
def test_mask(base, letters):
    def table(size):
        square = torch.ones(size("S S"), dtype=torch.bool).triu(1)
        return square if letters == "bnst" else square.unsqueeze(1)

    def in_torch(_, x, table):
        return x.masked_fill(table, -torch.inf)

    def in_rules(machine, x):
        return mask(machine, "masked", x)

    check(base, [Operand("scores", SCORES[letters])], in_torch, in_rules, tables=[table])


@each_value()
def test_add(base):
    check(base, [X, Operand("y", "s b n v")], lambda _, x, y: x + y, lambda machine, x, y: add(machine, "sum", x, y))


@each_value()
def test_gradients_meet(base):
    """Two consumers of one intermediate: the sum lies as the gradient that came first."""

    def in_torch(_, x):
        return x * 2, x.permute(1, 0, 2, 3) * 3, -x

    def in_rules(machine, x):
        turned_axes = tuple(x.axes[at] for at in (1, 0, 2, 3))
        first = multiply(machine, "double", x)
        view = machine.view(x, turned_axes)

        def back(gradients):
            return [machine.view(gradients[0], tuple(gradients[0].axes[at] for at in (1, 0, 2, 3)))]

        machine.attach([view], [x], back)
        return [first, multiply(machine, "triple", view), negate(machine, "negative", x)]

    check(base, [X], in_torch, in_rules)


@each_value()
@pytest.mark.parametrize("heads", ["n", "one"])
def test_rope(base, heads):
    """Of a query [s b n r], and of the one key that the heads share, which arrives as [s b r]."""
    from mla_cost.checks.reference.rope import apply_rope, rope_tables

    def cos(size):
        return rope_tables(torch.arange(size.s), size.r, torch.bfloat16)[0]

    def sin(size):
        return rope_tables(torch.arange(size.s), size.r, torch.bfloat16)[1]

    def in_torch(_, x, cos, sin):
        return apply_rope(x, cos, sin) if heads == "n" else apply_rope(x.unsqueeze(2), cos, sin).squeeze(2)

    def in_rules(machine, x):
        return rope(machine, "rotated", x)

    dims = "s b n r" if heads == "n" else "s b r"
    check(base, [Operand("x", dims)], in_torch, in_rules, tables=[cos, sin])


@each_value()
def test_rope_of_a_part_of_the_query(base):
    from mla_cost.checks.reference.rope import apply_rope, rope_tables

    def cos(size):
        return rope_tables(torch.arange(size.s), size.r, torch.bfloat16)[0]

    def sin(size):
        return rope_tables(torch.arange(size.s), size.r, torch.bfloat16)[1]

    def in_torch(size, q, cos, sin):
        nope, turned = q.split([size.k, size.r], -1)
        return nope, apply_rope(turned, cos, sin)

    def in_rules(machine, q):
        nope, turned = split(machine, q, [("q_nope", "k"), ("q_rope", "r")])
        return [nope, rope(machine, "rotated", turned)]

    check(base, [Operand("q", "s b n k+r")], in_torch, in_rules, tables=[cos, sin])
