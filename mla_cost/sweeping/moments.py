"""A program as one matrix: every figure, and every moment that can be a peak, over the monomials of its symbols.

All coefficients and all values are whole and not negative. So a sum of products in double precision is exact as long
as it is below 2^53, in whatever order it is summed: every partial sum is smaller still. And it is never below 2^53
where the true sum is not: rounding is monotonic, and 2^53 is a double. One comparison is the whole fence.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mla_cost import evaluate
from mla_cost.cost import Key, timeline
from mla_cost.engine import Event, Timeline
from mla_cost.polynomial import ZERO, Monomial, Polynomial, product, total
from mla_cost.sweeping.grid import Floats

MORE = "more_layers"  # layers beyond two, in a stack of two or more
OTHERS = "other_ranks"  # P - 1: what is sent to each of them has no negative term
FIGURES = (
    "saved_bytes",
    "forward_payload_bytes",
    "backward_payload_bytes",
    "forward_wire_bytes",
    "backward_wire_bytes",
    "parameter_bytes",
)
# what is sent again to recompute counts as backward's, as in a plan
PHASES = {"forward": ("forward",), "backward": ("backward", "recompute")}
Kinds = frozenset[str]


class Rows(NamedTuple):
    """figures: one row each, as FIGURES. seen: the moments of the peak. allocated: those of each kinds of workspace."""

    monomials: tuple[Monomial, ...]
    figures: Floats
    seen: Floats
    allocated: tuple[Floats, ...]


class Folded(NamedTuple):
    """Rows over the monomials of what varies; the last `spans` say which rows are figures, seen, allocated."""

    monomials: tuple[Monomial, ...]
    matrix: Floats
    spans: tuple[slice, ...]


class _Walk(NamedTuple):
    forward: list[Polynomial]
    backward: list[Polynomial]
    after_forward: Polynomial


@lru_cache(maxsize=4096)
def rows(key: Key, kinds: tuple[Kinds, ...], stacked: bool) -> Rows:
    """The rows of a program, of a stack of two or more blocks where `stacked`.

    Raises:
        ProgramError: the kernel has no program for this form.

    """
    run = timeline(key)
    figures = [
        evaluate.saved(run),
        *(_sent(amount, run, phase) for amount in (evaluate.payload, evaluate.wire) for phase in PHASES),
        evaluate.parameters(run),
    ]
    layers = Polynomial.symbol(MORE) + Polynomial.constant(2) if stacked else Polynomial.constant(1)
    inner = timeline(key._replace(input_held=False)) if stacked else None
    seen = _seen(run, inner)
    allocated = [[moment + layers * figures[-1] for moment in _allocated(run, inner, each)] for each in kinds]
    return _matrices([figure * layers for figure in figures], seen, allocated)


def _sent(amount: Callable[[Timeline, str], Polynomial], run: Timeline, phase: str) -> Polynomial:
    return total(amount(run, part) for part in PHASES[phase])


def _seen(run: Timeline, inner: Timeline | None) -> list[Polynomial]:
    """As `figures._stack_peak`: the first block's own, or the last's on the pile of what the others keep."""
    first = _walk(run, None)
    if inner is None:
        return first.forward + first.backward
    last = _walk(inner, None)
    pile = _kept(run, first) * (Polynomial.symbol(MORE) + Polynomial.constant(1))
    return first.forward + first.backward + [pile + moment for moment in last.forward + last.backward]


def _allocated(run: Timeline, inner: Timeline | None, kinds: Kinds) -> list[Polynomial]:
    """As `figures._stack_allocated_peak`: the last block, the second and the first."""
    first = _walk(run, kinds)
    if inner is None:
        return first.forward + first.backward
    last = _walk(inner, kinds)
    kept = _kept(run, _walk(run, None))
    gradients = total(a.size for a in run.allocations if a.kind == "parameter_gradient")
    more = Polynomial.symbol(MORE)
    others = more + Polynomial.constant(1)
    return [
        *first.forward,
        *(moment + gradients * others for moment in first.backward),
        *(moment + kept * others for moment in last.forward + last.backward),
        *(moment + kept + gradients * more for moment in last.backward),
    ]


def _kept(run: Timeline, first: _Walk) -> Polynomial:
    """What a block adds to the pile: all that is alive after forward but its input."""
    return first.after_forward - run.allocations[0].size


def _walk(run: Timeline, kinds: Kinds | None) -> _Walk:
    """The live bytes wherever they stop rising, and at kernel workspace that counts; kinds None: as a dispatcher."""
    found: tuple[list[Polynomial], list[Polynomial]] = ([], [])
    live, rising, after, opening = ZERO, False, ZERO, False
    for at, event in enumerate(run.events):
        phase = int(at >= run.forward_events)
        if at == run.forward_events:
            found[0].append(live)
            after, rising, opening = live, False, True
        if event.allocation is None:
            held = total(amount for kind, amount in event.work if kind in (kinds or ()))
            if held:
                found[phase].append(live + held)
        elif _counts(event, kinds):
            if event.what == "alloc":
                live, rising = live + event.allocation.size, True
            else:
                if rising:
                    found[phase].append(live)
                live, rising = live - event.allocation.size, opening
            opening = False
    if rising:
        found[1].append(live)
    return _Walk(*found, after)


def _counts(event: Event, kinds: Kinds | None) -> bool:
    if kinds is not None:
        return not event.merged
    return event.allocation is not None and event.allocation.kind != "parameter_gradient"


def fold(program: Rows, fixed: Mapping[str, float]) -> Folded:
    """The rows with these values multiplied in, without moments that then can never be the largest."""
    monomials, product_of = _substitution(program.monomials, fixed)
    parts = [program.figures @ product_of]
    parts += [undominated(moments @ product_of) for moments in (program.seen, *program.allocated)]
    ends = np.cumsum([0, *(len(part) for part in parts)]).tolist()
    spans = tuple(slice(start, end) for start, end in pairwise(ends))
    return Folded(monomials, np.concatenate(parts), spans)


def fold_further(rows: Folded, fixed: Mapping[str, float]) -> Folded:
    """As `fold`, keeping every row."""
    monomials, product_of = _substitution(rows.monomials, fixed)
    return rows._replace(monomials=monomials, matrix=rows.matrix @ product_of)


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


def _matrices(figures: list[Polynomial], seen: list[Polynomial], allocated: list[list[Polynomial]]) -> Rows:
    figures = [_over_others(figure) for figure in figures]
    every = [*figures, *seen, *(moment for moments in allocated for moment in moments)]
    monomials = tuple(sorted({monomial for polynomial in every for monomial in polynomial.terms}))
    if any(value < 0 for polynomial in every for value in polynomial.terms.values()):
        raise ArithmeticError("a negative coefficient: double precision would not be exact below the fence")
    return Rows(
        monomials,
        _matrix(figures, monomials),
        undominated(_matrix(seen, monomials)),
        tuple(undominated(_matrix(moments, monomials)) for moments in allocated),
    )


def _over_others(polynomial: Polynomial) -> Polynomial:
    """With P as one more than the other ranks, where it has negative terms as it stands."""
    if all(value > 0 for value in polynomial.terms.values()):
        return polynomial
    one, others = Polynomial.constant(1), Polynomial.symbol(OTHERS)
    return total(
        product([Polynomial.symbol(symbol) if symbol != "P" else others + one for symbol in monomial]) * value
        for monomial, value in polynomial.terms.items()
    )


def _matrix(polynomials: list[Polynomial], monomials: tuple[Monomial, ...]) -> Floats:
    return np.array([[p.terms.get(monomial, 0) for monomial in monomials] for p in polynomials], dtype=np.float64)


def undominated(moments: Floats) -> Floats:
    """The rows that no other row reaches in every coefficient: only they can be the largest."""
    below: Any = (moments[:, None, :] <= moments[None, :, :]).all(axis=-1)
    earlier = np.tri(len(moments), k=-1, dtype=bool)  # of equal rows the first stays
    dropped: NDArray[np.bool_] = np.any(below & (~below.T | earlier), axis=1)
    return np.ascontiguousarray(moments[~dropped])
