"""Polynomials with integer coefficients: the one number type of every size, payload and flop count.

A monomial is a sorted tuple of symbol names, repeated for powers: `("P", "s", "s")` is P*s^2. No division exists, so
every evaluation over integers is exact.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

Monomial = tuple[str, ...]


class Polynomial:
    """An immutable sum of integer multiples of monomials."""

    __slots__ = ("_hash", "terms")

    def __init__(self, terms: Mapping[Monomial, int]) -> None:
        self.terms: dict[Monomial, int] = {monomial: value for monomial, value in terms.items() if value}
        self._hash: int | None = None

    @classmethod
    def constant(cls, value: int) -> Polynomial:
        """The polynomial that is `value` everywhere."""
        return cls({(): value})

    @classmethod
    def symbol(cls, name: str) -> Polynomial:
        """The polynomial that is one symbol."""
        return cls({(name,): 1})

    def __add__(self, other: Polynomial) -> Polynomial:
        terms = dict(self.terms)
        for monomial, value in other.terms.items():
            terms[monomial] = terms.get(monomial, 0) + value
        return Polynomial(terms)

    def __sub__(self, other: Polynomial) -> Polynomial:
        return self + other * -1

    def __mul__(self, other: Polynomial | int) -> Polynomial:
        if isinstance(other, int):
            return Polynomial({monomial: value * other for monomial, value in self.terms.items()})
        terms: dict[Monomial, int] = {}
        for left, first in self.terms.items():
            for right, second in other.terms.items():
                monomial = tuple(sorted(left + right))
                terms[monomial] = terms.get(monomial, 0) + first * second
        return Polynomial(terms)

    __rmul__ = __mul__

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Polynomial) and self.terms == other.terms

    def __hash__(self) -> int:
        if self._hash is None:
            self._hash = hash(frozenset(self.terms.items()))
        return self._hash

    def __bool__(self) -> bool:
        return bool(self.terms)

    def __repr__(self) -> str:
        return f"Polynomial({self})"

    def __str__(self) -> str:
        return " + ".join(_term(monomial, value) for monomial, value in sorted(self.terms.items())) or "0"

    def symbols(self) -> frozenset[str]:
        """Every symbol that appears."""
        return frozenset(symbol for monomial in self.terms for symbol in monomial)

    def at(self, values: Mapping[str, int]) -> int:
        """The exact integer value at `values` (one integer for each symbol)."""
        total = 0
        for monomial, coefficient in self.terms.items():
            term = coefficient
            for symbol in monomial:
                term *= values[symbol]
            total += term
        return total

    def at_most(self, other: Polynomial) -> bool:
        """Whether every coefficient is at most the other's: then the value is, wherever all symbols are >= 0."""
        monomials = self.terms.keys() | other.terms.keys()
        return all(self.terms.get(m, 0) <= other.terms.get(m, 0) for m in monomials)


ZERO = Polynomial({})
ONE = Polynomial.constant(1)


def product(factors: Iterable[Polynomial]) -> Polynomial:
    """The product of the factors, one where there are none."""
    terms: dict[Monomial, int] = {(): 1}
    for factor in factors:
        grown: dict[Monomial, int] = {}
        for left, first in terms.items():
            for right, second in factor.terms.items():
                monomial = left + right
                grown[monomial] = grown.get(monomial, 0) + first * second
        terms = grown
    sorted_terms: dict[Monomial, int] = {}
    for monomial, value in terms.items():
        key = tuple(sorted(monomial))
        sorted_terms[key] = sorted_terms.get(key, 0) + value
    return Polynomial(sorted_terms)


def total(parts: Iterable[Polynomial]) -> Polynomial:
    """The sum of the parts, zero where there are none."""
    terms: dict[Monomial, int] = {}
    for part in parts:
        for monomial, value in part.terms.items():
            terms[monomial] = terms.get(monomial, 0) + value
    return Polynomial(terms)


def _term(monomial: Monomial, value: int) -> str:
    powers = {symbol: monomial.count(symbol) for symbol in monomial}
    parts = [name if power == 1 else f"{name}^{power}" for name, power in powers.items()]
    if value != 1 or not parts:
        parts.insert(0, str(value))
    return "*".join(parts)
