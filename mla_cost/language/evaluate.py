"""Folds of a timeline, and their evaluation in exact ints and sympy expressions; `batch.matrices` puts in arrays.

What is alive after each event is summed once, in `course`, over whatever sizes are: ints of which the largest counts,
polynomials and rows of coefficients of which those stay that can be.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, reduce
from heapq import merge
from itertools import accumulate
from operator import add, attrgetter, mul
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from mla_cost.language.machine import Collective, Event, Timeline, once_per_timeline
from mla_cost.language.polynomial import Polynomial, total

if TYPE_CHECKING:
    import sympy

EXACT_LIMIT = 1 << 53  # above it int64 sums and doubles stop being exact
Quantity = Literal["saved", "peak", "allocated_peak", "payload", "wire", "flops", "parameters"]


class ExactLimitError(OverflowError):
    """A byte count could reach 2^53, where not every evaluator is exact any more."""


class LiveBytes(NamedTuple):
    """The live bytes right after an event."""

    event: int
    bytes: int


class Walk(NamedTuple):
    """One run through the events: where the most is alive in each phase, and what is alive between them."""

    forward: LiveBytes
    backward: LiveBytes
    after_forward: int

    @property
    def peak(self) -> LiveBytes:
        """The first moment at which the most is alive."""
        return self.backward if self.backward.bytes > self.forward.bytes else self.forward


class Tape(NamedTuple):
    """The allocations and frees that one point of view counts, ready to be summed: what, sign, event number."""

    sizes: tuple[int, ...]
    signs: tuple[int, ...]
    events: tuple[int, ...]
    forward: int  # how many of them belong to forward

    @property
    def ends(self) -> list[int]:
        """The steps after which live bytes stop rising, and the first of each phase, which may fall from the other."""
        rising = zip(self.signs, (*self.signs[1:], -1), strict=True)
        last = self.forward - 1  # of forward: backward may rise further
        return [
            at for at, (now, then) in enumerate(rising) if at in {0, last + 1} or (now > 0 and (then < 0 or at == last))
        ]


class Course(NamedTuple):
    """Live bytes along a tape, in whatever its sizes are: ints, polynomials or rows of coefficients.

    live: after each step. works: with the kernel workspace of an event that counts, the number of the event beside it.
    begins: the event at which backward does.
    """

    tape: Tape
    live: list[Any]
    works: list[tuple[int, Any]]
    begins: int

    @property
    def after_forward(self) -> Any:
        """What is alive between forward and backward."""
        return self.live[self.tape.forward - 1]

    def tops(self) -> Iterator[tuple[int, Any]]:
        """Every moment at which the most of its phase can be alive, in order: each other one is at most one of them."""
        ends = ((self.tape.events[at], self.live[at]) for at in self.tape.ends)
        return merge(ends, self.works, key=lambda moment: moment[0])

    def phases(self) -> tuple[list[Any], list[Any]]:
        """The bytes of `tops`, of forward and of backward."""
        found: tuple[list[Any], list[Any]] = ([], [])
        for event, held in self.tops():
            found[event >= self.begins].append(held)
        return found


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
    def allocated_seen(self) -> Tape:
        """As `allocated` for a dispatcher, to which the sum of two gradients is new."""
        return self._tape(_everything)

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


@once_per_timeline
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
        if max(self.sizes) >= EXACT_LIMIT:
            raise ExactLimitError(f"a tensor of {max(self.sizes)} bytes")

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

    def walk_allocated_seen(self) -> Walk:
        """As `walk_allocated`, as torch's dispatcher shows it: sums of gradients are new, workspace is not seen."""
        return self._walk(self.account.allocated_seen, frozenset())

    def walk_accumulated_seen(self) -> Walk:
        """As `walk_accumulated`, as torch's dispatcher shows it: sums of gradients are new, workspace is not seen."""
        return self._walk(self.account.accumulated_seen, frozenset())

    def work_at(self, event: int, kinds: frozenset[str]) -> int:
        """The kernel workspace at an event."""
        works = (work for at, work in self.account.works if at == event)
        return sum(self.sizes[amount] for work in works for kind, amount in work if kind in kinds)

    def _walk(self, tape: Tape, kinds: frozenset[str]) -> Walk:
        found = course(self.account, tape, self.sizes, kinds)
        forward, backward = _largest(found, 0, tape.forward), _largest(found, tape.forward, len(tape.sizes))
        if max(forward.bytes, backward.bytes) >= EXACT_LIMIT:
            raise ExactLimitError("live bytes reach 2^53")
        return Walk(forward, backward, found.after_forward)


def course(account: Account, tape: Tape, sizes: Sequence[Any], kinds: frozenset[str]) -> Course:
    """Live bytes along a tape. sizes: of every distinct size of the account; kinds: the workspace that counts."""
    live = list(accumulate(map(mul, map(sizes.__getitem__, tape.sizes), tape.signs)))
    works = []
    for at, work in account.works if kinds else ():
        own = [sizes[amount] for kind, amount in work if kind in kinds]
        if own:
            works.append((at, reduce(add, own, live[bisect_right(tape.events, at) - 1])))
    return Course(tape, live, works, account.timeline.forward_events)


def _largest(found: Course, first: int, last: int) -> LiveBytes:
    """The first moment of a phase with most alive. A step that adds nothing is no later one."""
    live, events = found.live[first:last], found.tape.events
    most = max(live)
    steps = LiveBytes(events[first + live.index(most)], most)
    works = (LiveBytes(at, held) for at, held in found.works if (at >= found.begins) == (events[first] >= found.begins))
    return max((steps, *works), key=attrgetter("bytes"))


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


def model_flops(timeline: Timeline, phase: str, causal: bool) -> Polynomial:
    """As `flops`, without what a causal mask halves of attention."""
    every = flops(timeline, phase)
    return (
        every - _half(total(f.needed for f in timeline.flops if f.phase == phase and f.attention)) if causal else every
    )


def executed_flops(timeline: Timeline, phase: str, causal: bool) -> Polynomial:
    """Flops that kernels run in a phase, repeats included; of a causal mask half where they skip masked blocks."""
    own = [f for f in timeline.flops if f.phase == phase]
    every = total(f.needed + f.recomputed for f in own)
    return every - _half(skipped_flops(timeline, phase)) if causal else every


def skipped_flops(timeline: Timeline, phase: str) -> Polynomial:
    """The attention flops, repeats included, of kernels that skip masked blocks: causality halves what they run."""
    return total(f.needed + f.recomputed for f in timeline.flops if f.phase == phase and f.skips_masked)


def _half(whole: Polynomial) -> Polynomial:
    """Half of a count that is even whatever the sizes: every coefficient is."""
    if any(value % 2 for value in whole.terms.values()):
        raise ArithmeticError(f"an odd coefficient in {whole}")
    return Polynomial({monomial: value // 2 for monomial, value in whole.terms.items()})


def gradients(timeline: Timeline) -> Polynomial:
    """Bytes of all parameter gradients."""
    return total(allocation.size for allocation in timeline.allocations if allocation.kind == "parameter_gradient")


def parameters(timeline: Timeline) -> Polynomial:
    """Bytes of the parameters."""
    return total(parameter.size for parameter in timeline.parameters)


class PeakCandidate(NamedTuple):
    """A moment that can be the peak, as a polynomial of live bytes."""

    event: int
    bytes: Polynomial


@once_per_timeline
def candidates(timeline: Timeline, kinds: frozenset[str] | None = None) -> tuple[PeakCandidate, ...]:
    """The moments that can be the peak; kinds None: as the dispatcher sees it, else as `Evaluation.walk_allocated`.

    A moment is dropped when no coefficient of it exceeds another's: that one is at least as large everywhere.
    """
    account = account_of(timeline)
    tape = account.seen if kinds is None else account.allocated
    kept: list[PeakCandidate] = []
    for event, held in course(account, tape, account.polynomials, kinds or frozenset()).tops():
        if any(held.at_most(other.bytes) for other in kept):
            continue
        kept = [other for other in kept if not other.bytes.at_most(held)]
        kept.append(PeakCandidate(event, held))
    return tuple(kept)


# ---- sympy


def expression(polynomial: Polynomial) -> sympy.Expr:
    """The polynomial in sympy, over positive integer symbols of the same names."""
    import sympy

    terms = []
    for monomial, coefficient in polynomial.terms.items():
        symbols = [sympy.Symbol(name, positive=True, integer=True) for name in monomial]
        terms.append(sympy.Mul(sympy.Integer(coefficient), *symbols))
    return sympy.Add(*terms)
