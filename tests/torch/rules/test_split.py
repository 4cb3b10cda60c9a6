"""Ops that cut tensors up or join them, against torch."""

from __future__ import annotations

from mla_cost.language.rules import split
from mla_cost.language.rules.elementwise import multiply
from tests.torch.rules.harness import Operand, check, each_value, torch, values

HEADS = Operand("q", "s b n k+r")
KEY = Operand("key", "S b d_c+r")


@each_value()
def test_split(base):
    def in_torch(size, q):
        return q.split([size.k, size.r], -1)

    def in_rules(machine, q):
        return split.split(machine, q, [("q_nope", "k"), ("q_rope", "r")])

    check(base, [HEADS], in_torch, in_rules)


@each_value()
def test_split_of_a_middle_axis(base):
    def in_torch(size, w):
        return w.split([size.k, size.v], 1)

    def in_rules(machine, w):
        return split.split(machine, w, [("w_uk", "k"), ("w_uv", "v")])

    check(base, [Operand("w", "l k+v d_c")], in_torch, in_rules)


@each_value()
def test_a_part_without_a_gradient_is_filled_with_zeros(base):
    def in_torch(size, q):
        return q.split([size.k, size.r], -1)[0], q * 2

    def in_rules(machine, q):
        parts = split.split(machine, q, [("q_nope", "k"), ("q_rope", "r")])
        return [parts[0], multiply(machine, "double", q)]

    check(base, [HEADS], in_torch, in_rules)


@each_value()
def test_slice(base):
    def in_torch(size, key):
        return key[..., : size.d_c]

    def in_rules(machine, key):
        return split.narrow(machine, "value", key, 2, "d_c")

    check(base, [KEY], in_torch, in_rules)


@each_value()
def test_a_slice_beside_its_whole(base):
    """The absorbed form's value: a view of the key, whose gradient meets the key's."""

    def in_torch(size, key):
        return key * 2, key[..., : size.d_c]

    def in_rules(machine, key):
        return [multiply(machine, "double", key), split.narrow(machine, "value", key, 2, "d_c")]

    check(base, [KEY], in_torch, in_rules)


@each_value()
def test_own_rows_of_a_weight(base):
    def in_torch(size, w):
        return w.narrow(0, 0, size.l)

    def in_rules(machine, w):
        return split.narrow(machine, "own w", w, 0, "l")

    if base["P"] > 1:
        check(base, [Operand("w", "n k+v d_c", "parameter")], in_torch, in_rules)


@each_value()
def test_concat(base):
    def in_torch(_, nope, rope):
        return torch.cat((nope, rope), -1)

    def in_rules(machine, nope, rope):
        return split.concat(machine, "q", [nope, rope], "k+r")

    check(base, [Operand("nope", "s b n k"), Operand("rope", "s b n r")], in_torch, in_rules)


@each_value()
def test_concat_of_latent_and_rope_key(base):
    """The rope key has an axis of one head between, which the latent lacks."""

    def in_torch(_, latent, rope):
        return torch.cat((latent, rope), -1)

    def in_rules(machine, latent, rope):
        return split.concat(machine, "key", [latent, rope], "d_c+r")

    check(base, [Operand("latent", "s b d_c"), Operand("rope", "s b r")], in_torch, in_rules)


@each_value(*(values(**change) for change in ({}, {"b": 1}, {"s": 1}, {"l": 1}, {"l": 1, "P": 1}, {"r": 2, "P": 1})))
def test_expand_to_heads(base):
    def in_torch(size, rope):
        return rope.unsqueeze(2).expand(-1, -1, size.n, -1) * 1

    def in_rules(machine, rope):
        return multiply(machine, "rope of heads", split.expand(machine, "rope", rope, 2, "n"))

    check(base, [Operand("rope", "s b r")], in_torch, in_rules)


@each_value()
def test_keys_and_values_of_the_explicit_form(base):
    """k_nope | k_rope for every head, and V a view that pins the up-projection."""

    def in_torch(size, kv, rope):
        nope, value = kv.split([size.k, size.v], -1)
        return torch.cat((nope, rope.unsqueeze(2).expand(-1, -1, size.n, -1)), -1), value

    def in_rules(machine, kv, rope):
        nope, value = split.split(machine, kv, [("k_nope", "k"), ("value", "v")])
        heads = split.expand(machine, "rope", rope, 2, "n")
        return [split.concat(machine, "key", [nope, heads], "k+r"), value]

    check(base, [Operand("kv", "s b n k+v"), Operand("rope", "s b r")], in_torch, in_rules)


@each_value()
def test_contiguous_values(base):
    def in_torch(size, kv):
        nope, value = kv.split([size.k, size.v], -1)
        return nope, value.contiguous()

    def in_rules(machine, kv):
        nope, value = split.split(machine, kv, [("k_nope", "k"), ("value", "v")])
        return [nope, split.contiguous(machine, "value", value)]

    check(base, [Operand("kv", "s b n k+v")], in_torch, in_rules)


@each_value()
def test_contiguous(base):
    def in_torch(_, x):
        return x.contiguous()

    def in_rules(machine, x):
        return split.contiguous(machine, "x", x)

    check(base, [Operand("x", "s b n v")], in_torch, in_rules)


@each_value()
def test_pad_and_cut(base):
    """FlashAttention-2's padding of V, and its output cut back."""

    def in_torch(size, value):
        padded = torch.nn.functional.pad(value, (0, size("v+r")[0] - size.v))
        return (padded * 2)[..., : size.v]

    def in_rules(machine, value):
        padded = split.pad(machine, "padded", value, "v+r")
        return split.narrow(machine, "cut", multiply(machine, "double", padded), 3, "v")

    check(base, [Operand("value", "s b n v")], in_torch, in_rules)
