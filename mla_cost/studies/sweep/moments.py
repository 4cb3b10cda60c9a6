"""A program as one matrix: every figure, and every moment that can be a peak, over the monomials of its symbols."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

from mla_cost.batch.matrices import Rows, monomials_of, over_others, rows_of, undominated
from mla_cost.language import evaluate
from mla_cost.language.machine import PROGRAMS, Event, Timeline
from mla_cost.language.polynomial import ZERO, Monomial, Polynomial, total
from mla_cost.pricing.compile import Key, timeline
from mla_cost.pricing.step_traffic import PHASES

MORE = "more_layers"  # layers beyond two, in a stack of two or more
FIGURES = (
    "saved_bytes",
    "forward_payload_bytes",
    "backward_payload_bytes",
    "forward_wire_bytes",
    "backward_wire_bytes",
    "parameter_bytes",
)
Kinds = frozenset[str]


class Program(NamedTuple):
    """Over `monomials`: one row for each of FIGURES, the moments of the peak, those of each kinds of workspace."""

    monomials: tuple[Monomial, ...]
    parts: tuple[Rows, ...]


class _Walk(NamedTuple):
    forward: list[Polynomial]
    backward: list[Polynomial]
    after_forward: Polynomial


@lru_cache(maxsize=PROGRAMS)
def rows(key: Key, kinds: tuple[Kinds, ...], stacked: bool) -> Program:
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


def _matrices(figures: list[Polynomial], seen: list[Polynomial], allocated: list[list[Polynomial]]) -> Program:
    figures = [over_others(figure) for figure in figures]
    monomials = monomials_of([*figures, *seen, *(moment for moments in allocated for moment in moments)])
    peaks = [undominated(rows_of(moments, monomials)) for moments in (seen, *allocated)]
    return Program(monomials, (Rows(rows_of(figures, monomials)), *(Rows(moments, largest=True) for moments in peaks)))
