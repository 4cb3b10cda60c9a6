"""JavaScript printed from the rules that price: expressions of doubles, exact for whole numbers below 2^53.

A rule is run on `Js` in place of numbers and leaves the text of what it would compute. Where it asks which of two is
larger, `printed` runs it once for each answer and prints a choice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod
from typing import Any

from mla_cost.language.polynomial import Monomial, Polynomial


class Js:
    """The text of an expression. truth: whether it is a condition."""

    def __init__(self, text: str, truth: bool = False) -> None:
        self.text = text
        self.truth = truth

    def __add__(self, other: Any) -> Js:
        return _joined(self, "+", other)

    def __radd__(self, other: Any) -> Js:
        return self if other == 0 and not isinstance(other, Js) else _joined(other, "+", self)

    def __sub__(self, other: Any) -> Js:
        return _joined(self, "-", other)

    def __rsub__(self, other: Any) -> Js:
        return _joined(other, "-", self)

    def __mul__(self, other: Any) -> Js:
        return _joined(self, "*", other)

    def __rmul__(self, other: Any) -> Js:
        return _joined(other, "*", self)

    def __floordiv__(self, other: Any) -> Js:
        return Js(f"Math.floor({_text(self)}/{_text(other)})")

    def __rfloordiv__(self, other: Any) -> Js:
        return Js(f"Math.floor({_text(other)}/{_text(self)})")

    def __mod__(self, other: Any) -> Js:
        return _joined(self, "%", other)

    def maximum(self, other: Any) -> Js:
        """As `numbers.maximum`."""
        return Js(f"Math.max({_text(other)},{self.text})")

    def minimum(self, other: Any) -> Js:
        """As `numbers.minimum`."""
        return Js(f"Math.min({_text(other)},{self.text})")

    def least_common_multiple(self, other: Any) -> Js:
        """As `numbers.least_common_multiple`; LCM is a function of the page."""
        return Js(f"LCM({_text(other)},{self.text})")

    def where(self, then: Any, otherwise: Any) -> Js:
        """As `numbers.where`."""
        return Js(f"({self.text}?{_text(then)}:{_text(otherwise)})")

    def __lt__(self, other: Any) -> Js:
        return _joined(self, "<", other, truth=True)

    def __le__(self, other: Any) -> Js:
        return _joined(self, "<=", other, truth=True)

    def __gt__(self, other: Any) -> Js:
        return _joined(self, ">", other, truth=True)

    def __ge__(self, other: Any) -> Js:
        return _joined(self, ">=", other, truth=True)

    def __eq__(self, other: object) -> Js:  # type: ignore[override]  # an expression, not an answer
        return _joined(self, "===", other, truth=True)

    def __ne__(self, other: object) -> Js:  # type: ignore[override]  # as above
        return _joined(self, "!==", other, truth=True)

    def __and__(self, other: Any) -> Js:
        return _joined(self, "&&", other, truth=True)

    def __rand__(self, other: Any) -> Js:
        return _joined(other, "&&", self, truth=True)

    def __or__(self, other: Any) -> Js:
        return _joined(self, "||", other, truth=True)

    def __ror__(self, other: Any) -> Js:
        return _joined(other, "||", self, truth=True)

    def __hash__(self) -> int:
        return hash(self.text)

    def __bool__(self) -> bool:
        return _asked(self.text if self.truth else f"({self.text}!==0)")

    def __int__(self) -> int:
        """Of a condition 1 or 0, by its answer."""
        if not self.truth:
            raise TypeError("an expression is no number yet")
        return int(bool(self))


def _text(value: Any) -> str:
    if isinstance(value, Js):
        return value.text
    return str(value).lower() if isinstance(value, bool) else str(value)


def _joined(left: Any, sign: str, right: Any, *, truth: bool = False) -> Js:
    return Js(f"({_text(left)}{sign}{_text(right)})", truth)


# ---- choices

_path: list[tuple[str, bool]] = []
_place = 0


def _asked(condition: str) -> bool:
    """The answer of this run to a condition: the one planned, and yes to one that is new."""
    global _place  # noqa: PLW0603  # a rule that is run asks without an argument to carry this
    known = next((answer for text, answer in _path[:_place] if text == condition), None)
    if known is not None:
        return known
    if _place == len(_path):
        _path.append((condition, True))
    _place += 1
    return _path[_place - 1][1]


def printed(rule: Callable[[], Any]) -> str:
    """What a rule computes, as one expression; the conditions that it asks about become choices."""
    outer, place = list(_path), _place
    try:
        return _printed(rule, [])
    finally:
        _start(outer, place)


def _printed(rule: Callable[[], Any], planned: list[tuple[str, bool]]) -> str:
    _start(planned)
    found = _text(rule())
    asked = _path[len(planned) :]
    for at in range(len(asked) - 1, -1, -1):  # the answer yes is printed; now the other one of each, innermost first
        before = [*planned, *asked[:at]]
        otherwise = _printed(rule, [*before, (asked[at][0], False)])
        found = found if otherwise == found else f"({asked[at][0]}?{found}:{otherwise})"
    return found


def _start(path: list[tuple[str, bool]], place: int = 0) -> None:
    global _place  # noqa: PLW0603  # as above
    _path[:] = path
    _place = place


def of_polynomial(polynomial: Polynomial) -> str:
    """A polynomial without negative terms as a sum of products: exact below 2^53, and below it nowhere else."""
    terms = ("*".join([str(value), *monomial]) for monomial, value in sorted(polynomial.terms.items()))
    return "+".join(terms) or "0"


def with_values(polynomial: Polynomial, values: Mapping[str, int]) -> Polynomial:
    """A polynomial with numbers in place of some symbols."""
    found: dict[Monomial, int] = {}
    for monomial, coefficient in polynomial.terms.items():
        left = tuple(symbol for symbol in monomial if symbol not in values)
        factor = prod(values[symbol] for symbol in monomial if symbol in values)
        found[left] = found.get(left, 0) + coefficient * factor
    return Polynomial(found)
