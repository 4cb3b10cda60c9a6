"""Polynomials as rows of a matrix over their monomials, and the product of that matrix with many points.

All coefficients and all values are whole and not negative. So a sum of products in double precision is exact as long
as it is below 2^53, in whatever order it is summed: every partial sum is smaller still. And it is never below 2^53
where the true sum is not: rounding is monotonic, and 2^53 is a double. One comparison is the whole check.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from threading import local
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mla_cost.language.dims import OTHERS
from mla_cost.language.polynomial import Monomial, Polynomial, product, total

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

# what is sent to each of the other ranks of an axis has no negative term
_OTHERS: Final = {symbol: name for name, symbol in OTHERS.items()}
# a matrix product of at most so many multiplications stays on the core that asks for it
_ONE_CORE: Final = 1 << 18
_Known = dict[Monomial, Any]  # products made so far


class Rows(NamedTuple):
    """Some rows of a matrix. largest: only their maximum at a point is wanted, so rows that never win may go."""

    matrix: Floats
    largest: bool = False


class Folded(NamedTuple):
    """A matrix over monomials; `spans` say which of its rows belong together."""

    monomials: tuple[Monomial, ...]
    matrix: Floats
    spans: tuple[slice, ...]


class Scratch(local):
    """Arrays that a thread uses again and again: asking the system for memory costs more than the arithmetic."""

    def __init__(self) -> None:
        self._flat: dict[str, Any] = {}

    def array(self, name: str, shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
        """An array with any content, valid until the same name is asked for in this thread."""
        size = math.prod(shape)
        flat = self._flat.get(name)
        if flat is None or flat.size < size:
            flat = self._flat[name] = np.empty(size, dtype)
        found: NDArray[Any] = flat[:size].reshape(shape)
        return found


SCRATCH: Final = Scratch()


# ---- polynomials as rows


def monomials_of(polynomials: Iterable[Polynomial]) -> tuple[Monomial, ...]:
    """Every monomial of them, in order.

    Raises:
        ArithmeticError: a negative coefficient, with which doubles would not be exact below the exact-integer limit.

    """
    found: set[Monomial] = set()
    for polynomial in polynomials:
        if any(value < 0 for value in polynomial.terms.values()):
            raise ArithmeticError(f"a negative coefficient in {polynomial}")
        found.update(polynomial.terms)
    return tuple(sorted(found))


def rows_of(polynomials: Sequence[Polynomial], monomials: tuple[Monomial, ...]) -> Floats:
    """One row of coefficients for each polynomial."""
    found = np.zeros((len(polynomials), len(monomials)))
    place = {monomial: at for at, monomial in enumerate(monomials)}
    for row, polynomial in zip(found, polynomials, strict=True):
        for monomial, value in polynomial.terms.items():
            row[place[monomial]] = value
    return found


def over_others(polynomial: Polynomial) -> Polynomial:
    """With the ranks of an axis as one more than the other ranks, where it has negative terms as it stands."""
    if all(value > 0 for value in polynomial.terms.values()):
        return polynomial
    return total(product(map(_one_more, monomial)) * value for monomial, value in polynomial.terms.items())


def _one_more(symbol: str) -> Polynomial:
    if symbol not in _OTHERS:
        return Polynomial.symbol(symbol)
    return Polynomial.symbol(_OTHERS[symbol]) + Polynomial.constant(1)


def undominated(moments: Floats) -> Floats:
    """The rows that no other row reaches in every coefficient: only they can be the largest."""
    return np.ascontiguousarray(moments[winners(moments)])


def winners(moments: Floats) -> NDArray[np.bool_]:
    """Which rows no other row reaches in every coefficient; of equal rows the first."""
    below: Any = (moments[:, None, :] <= moments[None, :, :]).all(axis=-1)
    earlier = np.tri(len(moments), k=-1, dtype=bool)
    found: NDArray[np.bool_] = ~np.any(below & (~below.T | earlier), axis=1)
    return found


# ---- values put in


def fold(monomials: tuple[Monomial, ...], parts: Sequence[Rows], fixed: Mapping[str, float]) -> Folded:
    """The rows with these values multiplied in, without those that then can never be the largest."""
    left, taken = _substitution(monomials, fixed)
    found = [undominated(rows.matrix @ taken) if rows.largest else rows.matrix @ taken for rows in parts]
    ends = np.cumsum([0, *map(len, found)]).tolist()
    return Folded(left, np.concatenate(found), tuple(slice(start, end) for start, end in pairwise(ends)))


def fold_further(rows: Folded, fixed: Mapping[str, float]) -> Folded:
    """As `fold`, keeping every row."""
    left, taken = _substitution(rows.monomials, fixed)
    return rows._replace(monomials=left, matrix=rows.matrix @ taken)


def _substitution(monomials: tuple[Monomial, ...], fixed: Mapping[str, float]) -> tuple[tuple[Monomial, ...], Floats]:
    """The monomials that are left, and the matrix that takes coefficients of the old ones to theirs."""
    place: dict[Monomial, int] = {}
    entries = []
    for monomial in monomials:
        factor, left = 1.0, []
        for symbol in monomial:
            value = fixed.get(symbol)
            if value is None:
                left.append(symbol)
            else:
                factor *= value
        entries.append((place.setdefault(tuple(left), len(place)), factor))
    found = np.zeros((len(monomials), len(place)))
    for at, (where, factor) in enumerate(entries):
        found[at, where] = factor
    return tuple(place), found


def evaluated(rows: Folded, values: Mapping[str, Any], size: int) -> Floats:
    """Every row at every point, valid until this thread asks again."""
    return multiplied(rows.matrix, powers(rows.monomials, values, size))


def powers(monomials: tuple[Monomial, ...], values: Mapping[str, Any], size: int) -> Floats:
    """Each monomial at every point, made from the longest one before it."""
    found: Floats = SCRATCH.array("monomials", (len(monomials), size), np.float64)
    known: _Known = {}
    for at, monomial in enumerate(monomials):
        _multiply(monomial, values, known, found[at])
        known[monomial] = found[at]
    return found


def _multiply(monomial: Monomial, values: Mapping[str, Any], known: _Known, out: Any) -> None:
    if not monomial:
        out[:] = 1.0
    elif len(monomial) == 1:
        out[:] = values[monomial[0]]
    else:
        np.multiply(_prefix(monomial[:-1], values, known), values[monomial[-1]], out=out)


def _prefix(monomial: Monomial, values: Mapping[str, Any], known: _Known) -> Any:
    if len(monomial) == 1:
        return values[monomial[0]]
    if monomial not in known:
        known[monomial] = _prefix(monomial[:-1], values, known) * values[monomial[-1]]
    return known[monomial]


def multiplied(coefficients: Floats, monomials: Floats) -> Floats:
    """The matrix product, in tiles that a BLAS leaves on one core: other cores have points of their own."""
    count = monomials.shape[1]
    found: Floats = SCRATCH.array("product", (len(coefficients), count), np.float64)
    tile = max(64, _ONE_CORE // coefficients.size)
    for start in range(0, count, tile):
        end = start + tile
        np.matmul(coefficients, monomials[:, start:end], out=found[:, start:end])
    return found


def top(moments: Floats) -> Floats:
    """The largest of the rows at every point."""
    found: Floats = moments[0] if len(moments) == 1 else np.maximum.reduce(moments)
    return found
