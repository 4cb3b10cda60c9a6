"""einsum against torch, in all letters that forms and kernels use: copies, what is kept, gradients and their order."""

from __future__ import annotations

import re

import pytest

from mla_cost.declared.forms import FORMS
from mla_cost.declared.kernels import KERNELS
from mla_cost.language.rules.einsum import einsum
from mla_cost.language.rules.split import narrow, split
from mla_cost.pricing.key import form_of
from tests.torch.rules.harness import Operand, check, each_value, torch, values

LAYOUTS = ("sbnd", "bsht", "bnsd")
DIMS = {"s": "S", "t": "S", "b": "b", "n": "l", "k": "k", "c": "d_c", "v": "v"}


def written() -> list[str]:
    """Every equation in a form's or kernel's text."""
    texts = [form_of(name).text for name in FORMS]
    found = [equation for text in texts for equation in re.findall(r'einsum "([^"]+)"', text)]
    for kernel in KERNELS.values():
        for shared in (False, True):
            layouts = kernel.shared_layouts if shared else kernel.layouts
            found += [row[name] for row in layouts.values() for name in ("scores", "output")]
    return sorted(set(found))


def operands(equation: str, sequence: str = "S") -> list[Operand]:
    """Operands whose dims the letters stand for; d is the width of keys in scores and of values in outputs."""
    first, second = equation.partition("->")[0].split(",")
    widths = DIMS | {"d": "v" if first.startswith("b") else "k+r", "s": sequence}
    return [
        Operand(name, " ".join(widths[letter] for letter in letters))
        for name, letters in (("left", first), ("right", second))
    ]


def compare(base, equation, given, **options):
    check(
        base,
        given,
        lambda _, left, right: torch.einsum(equation, left, right),
        lambda machine, left, right: einsum(machine, "product", equation, left, right),
        **options,
    )


@each_value()
@pytest.mark.parametrize("equation", written())
def test_each_equation(base, equation):
    compare(base, equation, operands(equation))


@each_value(values(), values(b=1, s=1), values(P=1))
@pytest.mark.parametrize("equation", [equation for equation in written() if "t" in equation])
def test_queries_of_one_rank_and_keys_of_all(base, equation):
    """As kv-gather attends: s stays sharded."""
    compare(base, equation, operands(equation, sequence="s"))


@each_value(values(P=1, s=1), values(P=1, s=1, b=1, l=1), values(P=1, s=1, b=1))
@pytest.mark.parametrize("equation", written())
def test_one_position_in_all(base, equation):
    """A summed dim of size one is no product: torch multiplies element by element."""
    compare(base, equation, operands(equation))


@each_value()
def test_parts_of_a_weight(base):
    """The absorbed form's w_uk: a part of a weight in the middle of its rows."""

    def in_torch(size, q, w):
        w_uk, w_uv = w.split([size.k, size.v], 1)
        return torch.einsum("sbnk,nkc->sbnc", q, w_uk), w_uv

    def in_rules(machine, q, w):
        w_uk, w_uv = split(machine, w, [("w_uk", "k"), ("w_uv", "v")])
        return [einsum(machine, "q", "sbnk,nkc->sbnc", q, w_uk), w_uv]

    check(base, [Operand("q", "S b l k"), Operand("w", "l k+v d_c")], in_torch, in_rules)


@each_value()
def test_a_value_that_is_a_part_of_the_key(base):
    """The absorbed form: the value is a view of the key's storage, which is kept once."""

    def in_torch(size, probabilities, key):
        return torch.einsum("bnst,tbd->sbnd", probabilities, key[..., : size.d_c])

    def in_rules(machine, probabilities, key):
        value = narrow(machine, "value", key, 2, "d_c")
        return einsum(machine, "o", "bnst,tbd->sbnd", probabilities, value)

    check(base, [Operand("probabilities", "b l S S"), Operand("key", "S b d_c+r")], in_torch, in_rules)


def test_letters_that_do_not_fit_are_named():
    from mla_cost.language.dims import Predicates
    from mla_cost.language.machine import Machine

    machine = Machine(Predicates(), "bf16")
    q, key = machine.new("q", ("S", "b", "l", "k")), machine.new("key", ("S", "b", "v"))
    for equation, words in {
        "sbnd,tbnd->bnst": "'tbnd' names 4 axes, key has [S b v]",
        "sbnd,tbd->bnst": "'d' is k in q and v in key",
        "sbnd,tbk->bnsx": "'x' is in the result but in no operand",
    }.items():
        with pytest.raises(ValueError, match=re.escape(words)) as raised:
            einsum(machine, "scores", equation, q, key)
        assert equation in str(raised.value)
