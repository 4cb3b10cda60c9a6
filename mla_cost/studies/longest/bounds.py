"""Searches over whole numbers, without a word about memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator


def largest(fits: Callable[[int], bool], first: int, last: int) -> int | None:
    """The largest of first..last that fits, None where none does.

    What fits above `first` is taken to fit all the way down to first + 1; `first` itself is asked on its own.
    """
    if fits(last):
        return last
    low, high = first + 1, last
    if low >= high or not fits(low):
        return first if first < last and fits(first) else None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def smallest(fits: Callable[[int], bool], last: int) -> int | None:
    """The smallest of 1..last that fits, None where `last` does not; what fits is taken to fit all the way up."""
    if last < 1 or not fits(last):
        return None
    low, high = 0, last
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if fits(middle) else (middle, high)
    return high


def divisors(number: int, most: int) -> Iterator[int]:
    """The divisors of a number up to `most`, rising."""
    return (divisor for divisor in range(1, min(number, most) + 1) if number % divisor == 0)
