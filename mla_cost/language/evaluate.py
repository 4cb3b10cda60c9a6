"""Folds of a timeline, and their evaluation: exact ints (`figures`), numpy arrays and sympy expressions.

The evaluators share the timeline and nothing else: ints walk its events; numpy and sympy take the moments that can be
the peak as polynomials.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping
from functools import cached_property, lru_cache
from itertools import accumulate
from operator import mul
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from mla_cost.language.machine import PROGRAMS, Collective, Event, Timeline
from mla_cost.language.polynomial import ZERO, Polynomial, total

if TYPE_CHECKING:
    import numpy as np
    import sympy

FENCE = 1 << 53  # above it int64 sums and doubles stop being exact
Quantity = Literal["saved", "peak", "allocated_peak", "payload", "wire", "flops", "parameters"]


class FenceError(OverflowError):
    """A byte count could reach 2^53, where not every evaluator is exact any more."""


class Moment(NamedTuple):
    """The live bytes right after an event."""

    event: int
    bytes: int


class Walk(NamedTuple):
    """One run through the events: where the most is alive in each phase, and what is alive between them."""

    forward: Moment
    backward: Moment
    after_forward: int

    @property
    def peak(self) -> Moment:
        """The first moment at which the most is alive."""
        return self.backward if self.backward.bytes > self.forward.bytes else self.forward


class Tape(NamedTuple):
    """The allocations and frees that one point of view counts, ready to be summed: what, sign, event number."""

    sizes: tuple[int, ...]
    signs: tuple[int, ...]
    events: tuple[int, ...]
    forward: int  # how many of them belong to forward


class Account:
    """A timeline made ready for evaluation: every distinct size once, and the tapes over them."""

    def __init__(self, timeline: Timeline) -> None:
        self.timeline = timeline
        self._index: dict[Polynomial, int] = {}
        self.of_allocation = [self._number(a.size) for a in timeline.allocations]
        self.saved = [a.number for a in timeline.allocations if a.saved]
        self.gradients = [a.number for a in timeline.allocations if a.kind == "parameter_gradient"]
        self.works = [(at, self._work(at)) for at, event in enumerate(timeline.events) if event.what == "work"]
        self.payloads = [(self._number(c.payload), self._number(c.wire)) for c in timeline.collectives]
        self.parameters = self._number(parameters(timeline))
        self.polynomials = tuple(self._index)

    def _number(self, polynomial: Polynomial) -> int:
        return self._index.setdefault(polynomial, len(self._index))

    def _work(self, at: int) -> tuple[tuple[str, int], ...]:
        return tuple((kind, self._number(amount)) for kind, amount in self.timeline.events[at].work)

    @cached_property
    def seen(self) -> Tape:
        """What dispatchers show, less the gradients of weights."""
        return self._tape(_without_gradients)

    @cached_property
    def allocated(self) -> Tape:
        """What allocators show."""
        return self._tape(_added_in_place)

    @cached_property
    def accumulated(self) -> Tape:
        """As `allocated`, where gradients of weights are added to buffers that stand: each lives until it is added."""
        return self._tape(_added_in_place, until_gathered=True)

    @cached_property
    def accumulated_seen(self) -> Tape:
        """As `accumulated` for a dispatcher, to which the sum of two gradients is new."""
        return self._tape(_everything, until_gathered=True)

    def _tape(self, counts: Callable[[Event], bool], until_gathered: bool = False) -> Tape:
        rows = [
            (self.of_allocation[event.allocation.number], 1 if event.what == "alloc" else -1, at)
            for at, event in enumerate(self.timeline.events)
            if event.allocation is not None and counts(event)
        ]
        if until_gathered:  # before the event that comes next
            added = [self.timeline.allocations[number] for number in self.gradients]
            rows = [*((self.of_allocation[a.number], -1, a.gathered) for a in added), *rows]
            rows.sort(key=lambda row: row[2])
        forward = sum(at < self.timeline.forward_events for _, _, at in rows)
        sizes, signs, events = zip(*rows, strict=True)
        return Tape(sizes, signs, events, forward)


def _without_gradients(event: Event) -> bool:
    """What dispatchers show, less the gradients of weights."""
    return event.allocation is not None and event.allocation.kind != "parameter_gradient"


def _added_in_place(event: Event) -> bool:
    """What allocators show: the sum of two gradients is new to dispatchers only."""
    return not event.merged


def _everything(event: Event) -> bool:
    """What dispatchers show."""
    return event.allocation is not None


@lru_cache(maxsize=PROGRAMS)
def account_of(timeline: Timeline) -> Account:
    """The account of a timeline, made once."""
    return Account(timeline)


class Evaluation:
    """An account at one point: exact ints.

    Raises:
        FenceError: a size could not be trusted in every evaluator.

    """

    def __init__(self, account: Account, values: Mapping[str, int]) -> None:
        self.account = account
        self.values = values
        self.sizes = [polynomial.at(values) for polynomial in account.polynomials]
        if max(self.sizes) >= FENCE:
            raise FenceError(f"a tensor of {max(self.sizes)} bytes")

    def bytes_of(self, allocation: int) -> int:
        """Bytes of an allocation, by its number."""
        return self.sizes[self.account.of_allocation[allocation]]

    def saved_bytes(self) -> int:
        """Bytes kept between forward and backward."""
        return sum(map(self.bytes_of, self.account.saved))

    def gradient_bytes(self) -> int:
        """Bytes of all parameter gradients."""
        return sum(map(self.bytes_of, self.account.gradients))

    def parameter_bytes(self) -> int:
        """Bytes of all parameters."""
        return self.sizes[self.account.parameters]

    def walk(self) -> Walk:
        """What torch's dispatcher shows: every storage, without parameters and their gradients."""
        return self._walk(self.account.seen, frozenset())

    def walk_allocated(self, kinds: frozenset[str]) -> Walk:
        """What an allocator shows: gradients added in place, parameter gradients and kernel workspace counted.

        Parameters themselves are constant and left to the caller. kinds: the workspace that counts.
        """
        return self._walk(self.account.allocated, kinds)

    def walk_accumulated(self, kinds: frozenset[str]) -> Walk:
        """As `walk_allocated`, where every gradient of a weight is added to a buffer that stands, and dies then."""
        return self._walk(self.account.accumulated, kinds)

    def walk_accumulated_seen(self) -> Walk:
        """As `walk_accumulated`, as torch's dispatcher shows it: sums of gradients are new, workspace is not seen."""
        return self._walk(self.account.accumulated_seen, frozenset())

    def work_at(self, event: int, kinds: frozenset[str]) -> int:
        """The kernel workspace at an event."""
        return sum(self._work(work, kinds) for at, work in self.account.works if at == event)

    def _work(self, work: tuple[tuple[str, int], ...], kinds: frozenset[str]) -> int:
        return sum(self.sizes[amount] for kind, amount in work if kind in kinds)

    def _walk(self, tape: Tape, kinds: frozenset[str]) -> Walk:
        live = list(accumulate(map(mul, tape.signs, map(self.sizes.__getitem__, tape.sizes))))
        forward, backward = _largest(live, tape, 0, tape.forward), _largest(live, tape, tape.forward, len(live))
        for at, work in self.account.works if kinds else ():
            held = Moment(at, live[bisect_right(tape.events, at) - 1] + self._work(work, kinds))
            if at < self.account.timeline.forward_events:
                forward = held if held.bytes > forward.bytes else forward
            else:
                backward = held if held.bytes > backward.bytes else backward
        if max(forward.bytes, backward.bytes) >= FENCE:
            raise FenceError("live bytes reach 2^53")
        return Walk(forward, backward, live[tape.forward - 1])


def _largest(live: list[int], tape: Tape, first: int, last: int) -> Moment:
    most = max(live[first:last])
    return Moment(tape.events[live.index(most, first)], most)


# ---- polynomials


def saved(timeline: Timeline) -> Polynomial:
    """Bytes kept between forward and backward."""
    return total(allocation.size for allocation in timeline.allocations if allocation.saved)


def payload(timeline: Timeline, phase: str) -> Polynomial:
    """Bytes handed to collectives in a phase."""
    return total(c.payload for c in collectives(timeline, phase))


def wire(timeline: Timeline, phase: str) -> Polynomial:
    """Bytes sent in a phase."""
    return total(c.wire for c in collectives(timeline, phase))


def collectives(timeline: Timeline, phase: str) -> list[Collective]:
    """The collectives of a phase, in order."""
    return [collective for collective in timeline.collectives if collective.phase == phase]


def flops(timeline: Timeline, phase: str) -> Polynomial:
    """Flops that the maths needs in a phase, attention as a full square."""
    return total(f.needed for f in timeline.flops if f.phase == phase)


def attention_flops(timeline: Timeline, phase: str) -> Polynomial:
    """The part of `flops` that a causal mask halves."""
    return total(f.needed for f in timeline.flops if f.phase == phase and f.attention)


def skipped_flops(timeline: Timeline, phase: str) -> Polynomial:
    """The attention flops, repeats included, of kernels that skip masked blocks: causality halves what they run."""
    return total(f.needed + f.recomputed for f in timeline.flops if f.phase == phase and f.skips_masked)


def repeated_flops(timeline: Timeline, phase: str) -> Polynomial:
    """Flops that kernels run on top of what the maths needs."""
    return total(f.recomputed for f in timeline.flops if f.phase == phase)


def parameters(timeline: Timeline) -> Polynomial:
    """Bytes of the parameters."""
    return total(parameter.size for parameter in timeline.parameters)


class Candidate(NamedTuple):
    """A moment that can be the peak, as a polynomial of live bytes."""

    event: int
    bytes: Polynomial


@lru_cache(maxsize=PROGRAMS)
def candidates(timeline: Timeline, kinds: frozenset[str] | None = None) -> tuple[Candidate, ...]:
    """The moments that can be the peak; kinds None: as the dispatcher sees it, else as `Evaluation.walk_allocated`.

    A moment is dropped when no coefficient of it exceeds another's: that one is at least as large everywhere.
    """
    kept: list[Candidate] = []
    for moment in _rising_ends(timeline, kinds):
        if any(moment.bytes.at_most(other.bytes) for other in kept):
            continue
        kept = [other for other in kept if not other.bytes.at_most(moment.bytes)]
        kept.append(moment)
    return tuple(kept)


def _rising_ends(timeline: Timeline, kinds: frozenset[str] | None) -> list[Candidate]:
    """The live bytes wherever they stop rising, and at every kernel workspace that counts."""
    found: list[Candidate] = []
    live, rising, last = ZERO, False, -1
    for at, event in enumerate(timeline.events):
        allocation = event.allocation
        if allocation is None:
            held = total(amount for kind, amount in event.work if kind in (kinds or ()))
            if held:
                found.append(Candidate(at, live + held))
            continue
        if (kinds is None and allocation.kind == "parameter_gradient") or (kinds is not None and event.merged):
            continue
        if event.what == "alloc":
            live, rising, last = live + allocation.size, True, at
        else:
            if rising:
                found.append(Candidate(last, live))
            live, rising = live - allocation.size, False
    if rising:
        found.append(Candidate(last, live))
    return found


# ---- numpy and sympy


def arrays(polynomial: Polynomial, values: Mapping[str, Any]) -> np.ndarray[Any, Any]:
    """The polynomial at many points: each symbol an int64 array (or an int). Exact below the fence.

    Raises:
        FenceError: a term could reach 2^53 at some point, seen in double precision before int64 could wrap.

    """
    import numpy as np

    result: Any = np.int64(0)
    reach: Any = np.float64(0)
    for monomial, coefficient in polynomial.terms.items():
        term: Any = np.int64(coefficient)
        size: Any = np.float64(abs(coefficient))
        for symbol in monomial:
            term = term * values[symbol]
            size = size * np.asarray(values[symbol], dtype=np.float64)
        result = result + term
        reach = reach + size
    if np.any(reach >= FENCE):
        raise FenceError(f"{polynomial} reaches 2^53")
    return np.asarray(result)


def peak_arrays(moments: tuple[Candidate, ...], values: Mapping[str, Any]) -> np.ndarray[Any, Any]:
    """The largest candidate at many points."""
    import numpy as np

    stacked = np.broadcast_arrays(*[arrays(moment.bytes, values) for moment in moments])
    return np.asarray(np.maximum.reduce(stacked))


def expression(polynomial: Polynomial) -> sympy.Expr:
    """The polynomial in sympy, over positive integer symbols of the same names."""
    import sympy

    terms = []
    for monomial, coefficient in polynomial.terms.items():
        symbols = [sympy.Symbol(name, positive=True, integer=True) for name in monomial]
        terms.append(sympy.Mul(sympy.Integer(coefficient), *symbols))
    return sympy.Add(*terms)
