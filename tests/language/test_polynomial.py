"""Polynomials: they add, multiply and compare as the numbers that they stand for."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mla_cost.language.polynomial import ONE, ZERO, Polynomial, product, total

SYMBOLS = ("P", "b", "k+r", "s")
MONOMIALS = st.lists(st.sampled_from(SYMBOLS), max_size=3).map(lambda names: tuple(sorted(names)))
POLYNOMIALS = st.dictionaries(MONOMIALS, st.integers(-(2**40), 2**40), max_size=4).map(Polynomial)
VALUES = st.fixed_dictionaries({name: st.integers(0, 2**20) for name in SYMBOLS})

s, b = Polynomial.symbol("s"), Polynomial.symbol("b")


@given(POLYNOMIALS, POLYNOMIALS, VALUES)
def test_operations_are_those_of_the_values(left, right, at):
    assert (left + right).at(at) == left.at(at) + right.at(at)
    assert (left - right).at(at) == left.at(at) - right.at(at)
    assert (left * right).at(at) == left.at(at) * right.at(at)
    assert (left * 3).at(at) == (3 * left).at(at) == 3 * left.at(at)


@given(POLYNOMIALS, POLYNOMIALS)
def test_equal_sums_are_equal_and_hash_alike(left, right):
    assert left + right == right + left
    assert hash(left * right) == hash(right * left)
    assert not left - left
    assert (left - left) == ZERO


@given(st.lists(POLYNOMIALS, max_size=4), VALUES)
def test_total_and_product(parts, at):
    expected = 1
    for part in parts:
        expected *= part.at(at)
    assert product(parts).at(at) == expected
    assert total(parts).at(at) == sum(part.at(at) for part in parts)


@given(POLYNOMIALS, POLYNOMIALS, VALUES)
def test_at_most_holds_wherever_no_symbol_is_negative(left, right, at):
    if left.at_most(right):
        assert left.at(at) <= right.at(at)
    assert left.at_most(left)


def test_at_most_sees_terms_that_only_one_side_has():
    assert s.at_most(s + b)
    assert not (s + b).at_most(s)
    assert not s.at_most(b)


def test_text():
    assert str(s * s * b * 2 + ONE * 3) == "3 + 2*b*s^2"
    assert repr(ZERO) == "Polynomial(0)"
    assert (s * b + s).symbols() == {"b", "s"}


def test_values_are_exact_integers_of_any_size():
    assert (s * s * s).at({"s": 2**40}) == 2**120


def test_a_missing_value_is_an_error():
    with pytest.raises(KeyError, match="b"):
        (s * b).at({"s": 1})


def test_the_operands_stay_as_they_are():
    before = dict(s.terms)
    assert (s + b) * s != s
    assert s.terms == before
