"""Linear layers against torch: rows and contracted dims that merge or do not, own rows of a weight."""

from __future__ import annotations

from mla_cost.language.rules.matmul import linear
from mla_cost.language.rules.split import narrow
from tests.torch.rules.harness import Operand, check, each_value, torch

W_DOWN = Operand("W", "d_q h", "parameter")
W_UP = Operand("W", "n k+v d_c", "parameter")
W_OUT = Operand("W", "h n v", "parameter")


@each_value()
def test_a_latent_of_the_input(base):
    def in_torch(_, x, w):
        return torch.nn.functional.linear(x, w)

    def in_rules(machine, x, w):
        return linear(machine, "y", x, w)

    check(base, [Operand("x", "s b h"), W_DOWN], in_torch, in_rules)
    check(base, [Operand("x", "s b h", "leaf"), W_DOWN], in_torch, in_rules)


@each_value()
def test_heads_of_a_latent(base):
    def in_torch(size, c, w):
        return torch.nn.functional.linear(c, w.flatten(0, 1)).view(size("s b n k+v"))

    def in_rules(machine, c, w):
        return linear(machine, "kv", c, w)

    check(base, [Operand("c", "s b d_c"), W_UP], in_torch, in_rules)


@each_value()
def test_own_rows_of_a_weight(base):
    def in_torch(size, c, w):
        rows = w.narrow(0, 0, size.l)
        return torch.nn.functional.linear(c, rows.flatten(0, 1)).view(size("S b l k+v"))

    def in_rules(machine, c, w):
        rows = narrow(machine, "own W", w, 0, "l")
        return linear(machine, "kv", c, rows)

    if base["P"] > 1:  # on one rank a form uses the weight itself
        check(base, [Operand("c", "S b d_c"), W_UP], in_torch, in_rules)


@each_value()
def test_the_output_projection_of_heads(base):
    def in_torch(_, o, w):
        return torch.nn.functional.linear(o.flatten(2), w.flatten(1))

    def in_rules(machine, o, w):
        return linear(machine, "y", o, w)

    check(base, [Operand("o", "s b n v"), W_OUT], in_torch, in_rules)


@each_value()
def test_two_layers_share_an_input(base):
    """The gradients meet at the leaf: the dispatcher shows their sum as a new tensor."""

    def in_torch(_, x, left, right):
        return torch.nn.functional.linear(x, left), torch.nn.functional.linear(x, right)

    def in_rules(machine, x, left, right):
        first = linear(machine, "left", x, left)
        return [first, linear(machine, "right", x, right)]

    check(base, [Operand("x", "s b h", "leaf"), W_DOWN, Operand("V", "d_c h", "parameter")], in_torch, in_rules)
