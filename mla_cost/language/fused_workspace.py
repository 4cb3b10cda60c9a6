"""What a fused kernel holds inside its backward: a polynomial over the sizes of a call and over dims rounded from them.

Rounding, branches and the larger of two are no polynomials, so they are dims of their own with a name, worked out
before the polynomial is. Everything is a number or an array of numbers.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from mla_cost.errors import nearest
from mla_cost.language.numbers import at_each, is_array
from mla_cost.language.polynomial import Polynomial, product, total

# the sizes of one call: sequences, heads, heads of the key, positions of queries and of keys, widths of one head
CALL: Final = ("batch", "heads", "key_heads", "queries", "keys", "qk", "v")


class Workspace:
    """Bytes of one call, as text: a sum of products, such as `4*batch*heads*rows*width + 65536`.

    Its names are those of `CALL` and those of `dims`: each of these is a function of whole numbers, whose arguments
    are named as the sizes and the earlier dims that it reads. It may branch, call helpers and compare.

    Raises:
        ValueError: a name that is neither, or a text that is no such sum; with the nearest name.

    Example:
        >>> Workspace("4*batch*heads*rows", rows=lambda queries: -(-queries // 128) * 128).at(
        ...     {"batch": 1, "heads": 2, "queries": 100}
        ... )
        1024
    """

    def __init__(self, text: str, **dims: Callable[..., int]) -> None:
        self.text = text
        self._dims: list[tuple[str, Callable[..., int], tuple[str, ...]]] = []
        known = list(CALL)
        for name, function in dims.items():
            reads = tuple(inspect.signature(function).parameters)
            for each in reads:
                _require(each, known, f"dim {name}")
            self._dims.append((name, function, reads))
            known.append(name)
        self.polynomial = _parsed(text, known)

    def at(self, sizes: Mapping[str, Any]) -> Any:
        """Bytes at these sizes, each a number or an array; exact below 2^53."""
        found = {name: size if is_array(size) else int(size) for name, size in sizes.items()}
        return self.over(found, at_each)

    def over(self, sizes: Mapping[str, Any], call: Callable[..., Any]) -> Any:
        """The same over anything that adds and multiplies; call: how the function of a dim is asked."""
        found = dict(sizes)
        for name, function, reads in self._dims:
            found[name] = call(function, *map(found.__getitem__, reads))
        return self.polynomial.at(found)


def _parsed(text: str, known: Iterable[str]) -> Polynomial:
    return total(
        product(_factor(factor.strip(), text, known) for factor in term.split("*")) for term in text.split("+")
    )


def _factor(factor: str, text: str, known: Iterable[str]) -> Polynomial:
    if factor.isdecimal():
        return Polynomial.constant(int(factor))
    _require(factor, known, repr(text))
    return Polynomial.symbol(factor)


def _require(name: str, known: Iterable[str], where: str) -> None:
    if name in known:
        return
    meant = " or ".join(nearest(name, known))
    reported = f"; did you mean {meant}?" if meant else ""
    raise ValueError(
        f"workspace: {where} reads {name!r}, which is no size of a call; allowed: {', '.join(known)}{reported}"
    )


NO_WORKSPACE: Final = Workspace("0")  # a kernel that holds nothing inside its calls, or of which nothing is known
