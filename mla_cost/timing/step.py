"""A pipeline schedule run over passes that take their own time: when each starts, when the step ends, who waits."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from mla_cost.language.numbers import ceil_divide
from mla_cost.language.schedule import DeadlockError, Schedule, ScheduledPass, ScheduleSize, steps, takes

Duration = Callable[[int, ScheduledPass], Any]
NOTHING = -1  # the place, behind all others, of what ends at once


class Run(NamedTuple):
    """One pass of a stage: when it starts and ends, in seconds from the start of the step."""

    stage: int
    step: ScheduledPass
    start: float
    end: float


class Waiting(NamedTuple):
    """A pass, by its place in the order, and the places of those that must have ended; or many passes, as arrays.

    before: the one before it on its stage, NOTHING for the first; what it needs of its own stage ended before that.
    others: what other stages hand on to it. alike: the place in `Order.alike` of how long it takes.
    """

    place: Any
    before: Any
    others: tuple[Any, ...]
    alike: Any


class Order(NamedTuple):
    """Every pass of every stage, each after all that it waits for.

    alike: passes that differ in no more than their micro-batch, one of each with its stage: they take as long.
    """

    passes: tuple[tuple[int, ScheduledPass], ...]
    waiting: tuple[Waiting, ...]
    alike: tuple[tuple[int, ScheduledPass], ...]


@lru_cache(maxsize=64)
def in_order(schedule: Schedule, size: ScheduleSize) -> Order:
    """The order of a schedule; no time matters to it.

    Raises:
        DeadlockError: a stage waits for what no stage comes to send.

    """
    orders = [list(steps(schedule, size, stage)) for stage in range(size.stages)]
    place: dict[tuple[int, ScheduledPass], int] = {}
    alike: dict[tuple[int, ScheduledPass], int] = {}
    last, done = [NOTHING] * size.stages, [0] * size.stages
    found: list[Waiting] = []
    ready, stalled = list(range(size.stages)), dict[tuple[int, ScheduledPass], list[int]]()
    while ready:
        stage = ready.pop()
        for step in orders[stage][done[stage] :]:
            needs = takes(step, stage, size)
            missing = next((each for each in needs if each not in place), None)
            if missing is not None:
                stalled.setdefault(missing, []).append(stage)
                break
            done[stage] += 1
            own = alike.setdefault((stage, step._replace(micro_batch=0)), len(alike))
            others = tuple(place[each] for each in needs if each[0] != stage)
            found.append(Waiting(len(found), last[stage], others, own))
            last[stage] = place[stage, step] = len(found) - 1
            ready += stalled.pop((stage, step), ())
    stuck = {stage: ended for stage, ended in enumerate(done) if ended < len(orders[stage])}
    if stuck:
        raise DeadlockError(stuck)
    return Order(tuple(place), tuple(found), tuple(alike))


def run(waiting: Iterable[Waiting], ended: Any, seconds: Any, hop: Any, larger: Callable[[Any, Any], Any] = max) -> Any:
    """When every pass ends, put into `ended` by its place; at NOTHING it holds what ends at once.

    seconds: of each in `Order.alike`. hop: what a hidden state needs to the next stage. Over numbers, or over arrays
    of plans where `waiting` has arrays of places that wait for none of each other; larger: of two of them.
    """
    for place, before, others, alike in waiting:
        start = ended[before]
        for at in others:
            start = larger(start, ended[at] + hop)
        ended[place] = start + seconds[alike]
    return ended


def runs(schedule: Schedule, size: ScheduleSize, takes_seconds: Duration, hop: float) -> list[list[Run]]:
    """Every pass of every stage. takes_seconds: of a pass, the same for every micro-batch.

    Raises:
        DeadlockError: a stage waits for what no stage comes to send.

    """
    order, found = in_order(schedule, size), list[list[Run]]([] for _ in range(size.stages))
    seconds = [takes_seconds(*each) for each in order.alike]
    ended = _ended(order, seconds, hop)
    for (stage, step), own in zip(order.passes, order.waiting, strict=True):
        end = ended[own.place]
        found[stage].append(Run(stage, step, end - seconds[own.alike], end))
    return found


def length(found: Sequence[Sequence[Run]]) -> float:
    """When the last pass ends."""
    return max((own[-1].end for own in found if own), default=0.0)


def step_length(schedule: Schedule, size: ScheduleSize, takes_seconds: Duration, hop: float) -> float:
    """How long the passes of a step take."""

    def ends(size: ScheduleSize) -> float:
        order = in_order(schedule, size)
        return max(_ended(order, [takes_seconds(*each) for each in order.alike], hop))

    found: float = from_shorter(size, ends)
    return found


def from_shorter(size: ScheduleSize, ends: Callable[[ScheduleSize], Any]) -> Any:
    """How long a step takes, by how long steps of as many or fewer micro-batches do; numbers or arrays.

    A schedule of many micro-batches repeats itself: where they are more than eight times the stages, two shorter runs
    say what each further one adds.
    """
    turn = size.stages * max(1, ceil_divide(size.group or size.stages, size.stages))
    if size.num_micro_batches <= 8 * turn:
        return ends(size)
    left = size.num_micro_batches % turn
    short, longer = (size._replace(num_micro_batches=times * turn + left) for times in (4, 6))
    first, second = ends(short), ends(longer)
    more = (size.num_micro_batches - longer.num_micro_batches) / (longer.num_micro_batches - short.num_micro_batches)
    return second + more * (second - first)


def _ended(order: Order, seconds: Sequence[float], hop: float) -> list[float]:
    return list(run(order.waiting, [0.0] * (len(order.waiting) + 1), seconds, hop))
