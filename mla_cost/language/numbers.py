"""Arithmetic that a rule states once, on a number or on an array of numbers.

Plain ints stay plain ints and import nothing. An array is recognised by its shape and computed by the module of its
own type. Whole numbers may stand in an array of doubles: below 2^53 every function here gives the same there. What has
a method of a function's name, as the text of an expression has, is asked by it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from math import lcm
from typing import Any, Final, Protocol, overload


class _OfTwo(Protocol):
    """Ints give an int; what else comes in decides what comes out."""

    @overload
    def __call__(self, first: int, second: int, /) -> int: ...
    @overload
    def __call__(self, first: Any, second: Any, /) -> Any: ...


def _of_two(function: Callable[[Any, Any], Any]) -> _OfTwo:
    return function


_NUMBERS: Final = frozenset({int, float, bool})


def is_array(value: Any) -> bool:
    """Whether a value is many numbers and not one."""
    return type(value) not in _NUMBERS and getattr(value, "ndim", 0) > 0


def _module(*values: Any) -> Any:
    """The module of the first array among them, which is loaded already; None where all are numbers."""
    for value in values:
        if is_array(value):
            return sys.modules[type(value).__module__.partition(".")[0]]
    return None


def _asked(name: str, first: Any, second: Any) -> Any:
    """What an operand of its own kind answers; None where both are numbers or arrays of them."""
    if type(first) in _NUMBERS and type(second) in _NUMBERS:
        return None
    if hasattr(first, name):
        return getattr(first, name)(second)
    return getattr(second, name)(first) if hasattr(second, name) else None


@_of_two
def maximum(first: Any, second: Any) -> Any:
    """The larger of two, number by number."""
    own = _asked("maximum", first, second)
    if own is not None:
        return own
    of_arrays = _module(first, second)
    return of_arrays.maximum(first, second) if of_arrays else max(first, second)


@_of_two
def minimum(first: Any, second: Any) -> Any:
    """The smaller of two, number by number."""
    own = _asked("minimum", first, second)
    if own is not None:
        return own
    of_arrays = _module(first, second)
    return of_arrays.minimum(first, second) if of_arrays else min(first, second)


def where(condition: Any, then: Any, otherwise: Any) -> Any:
    """One of two, by a truth value or an array of them. Both are worked out: neither may divide by zero."""
    if type(condition) not in _NUMBERS and hasattr(condition, "where"):
        return condition.where(then, otherwise)
    of_arrays = _module(condition)
    if of_arrays:
        return of_arrays.where(condition, then, otherwise)
    return then if condition else otherwise


@_of_two
def floor_divide(number: Any, by: Any) -> Any:
    """The whole part of a quotient of numbers that are not negative.

    A quotient of doubles below 2^53 never rounds up to the next whole number: it lies further below it than half of
    what doubles of that size differ by. By the int 1 a number is itself, not a copy.
    """
    if type(by) is int and by == 1:
        return number
    of_arrays = _module(number, by)
    if of_arrays and of_arrays.result_type(number, by).kind == "f":
        return of_arrays.floor(number / by)  # a tenth of what the remainder of doubles takes
    return number // by


@_of_two
def ceil_divide(number: Any, by: Any) -> Any:
    """The least whole number that is at least the quotient."""
    return floor_divide(number + by - 1, by)


@_of_two
def round_up(number: Any, multiple: Any) -> Any:
    """The least multiple that is at least the number.

    >>> round_up(129, 128)
    256
    """
    return ceil_divide(number, multiple) * multiple


@_of_two
def least_common_multiple(first: Any, second: Any) -> Any:
    """The least number that both divide; not of arrays."""
    own = _asked("least_common_multiple", first, second)
    return lcm(first, second) if own is None else own


def remainder(number: Any, by: Any) -> Any:
    """What a division leaves."""
    return number - floor_divide(number, by) * by


def how_many(first: Any, second: Any) -> Any:
    """How many of two truths hold: 0, 1 or 2; arrays give small ints."""
    of_arrays = _module(first, second)
    return of_arrays.add(first, second, dtype="int8", casting="unsafe") if of_arrays else bool(first) + bool(second)


def at_each(function: Callable[..., int], *arguments: Any) -> Any:
    """A function of whole numbers, number by number: any function, with branches, helpers and `max`.

    Arrays are handed to it as they are first, since most only add, multiply and round. One that asks which of two is
    larger, or calls for a single number in another way, cannot be answered by an array, which says so; such a function
    is called once for each distinct combination of its arguments.
    """
    of_arrays = _module(*arguments)
    if of_arrays is None:
        return int(function(*map(int, arguments)))
    arguments = tuple(each if is_array(each) else int(each) for each in arguments)
    if max(each.size for each in arguments if is_array(each)) > 1:  # one number in an array passes for a number
        try:
            return function(*arguments)
        except (TypeError, ValueError, AttributeError):
            pass
    return _one_by_one(of_arrays, function, arguments)


def _one_by_one(of_arrays: Any, function: Callable[..., int], arguments: tuple[Any, ...]) -> Any:
    differ = [at for at, each in enumerate(arguments) if is_array(each)]
    columns = of_arrays.broadcast_arrays(*(arguments[at] for at in differ))
    codes: Any = 0
    for column in columns:
        different, own = of_arrays.unique(column, return_inverse=True)
        _, first, codes = of_arrays.unique(codes * len(different) + own, return_index=True, return_inverse=True)
    asked = list(arguments)
    each = []
    for point in first:
        for at, column in zip(differ, columns, strict=True):
            asked[at] = int(column[point])
        each.append(function(*asked))
    return of_arrays.array(each, of_arrays.result_type(*columns))[codes]
