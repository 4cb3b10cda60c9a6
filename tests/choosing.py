"""Which cases of a product of values a run of the tests takes: shared by tests that walk many of them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import combinations, product
from typing import Any

EXHAUSTIVE = "MLA_COST_EXHAUSTIVE" in os.environ  # `make exhaustive`


def pairwise(*axes: Sequence[Any]) -> list[tuple[Any, ...]]:
    """Few tuples, one value of each axis in each, in which every two values of two axes meet; all with EXHAUSTIVE.

    >>> len(pairwise("abc", "xyz", (1, 2)))
    9
    """
    every = list(product(*axes))
    if EXHAUSTIVE:
        return every
    shown = [set(combinations(enumerate(map(str, case)), 2)) for case in every]
    left: set[Any] = set().union(*shown)
    taken: list[int] = []
    while left:
        best = max(range(len(every)), key=lambda at: len(shown[at] & left))
        taken.append(best)
        left -= shown[best]
    return [every[at] for at in sorted(taken)]


def spread(cases: Sequence[Any], most: int) -> list[Any]:
    """At most so many of the cases, evenly, the first and the last among them.

    >>> spread("abcdefg", 3)
    ['a', 'd', 'g']
    """
    if len(cases) <= most:
        return list(cases)
    return [cases[at * (len(cases) - 1) // (most - 1)] for at in range(most)]
