"""A pipeline schedule run over passes that take their own time: when each starts, when the step ends, who waits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import NamedTuple

from mla_cost.language.numbers import ceil_divide
from mla_cost.language.schedule import DeadlockError, PassKind, Schedule, ScheduledPass, ScheduleSize, steps, takes

Duration = Callable[[int, ScheduledPass], float]


class Run(NamedTuple):
    """One pass of a stage: when it starts and ends, in seconds from the start of the step."""

    stage: int
    step: ScheduledPass
    start: float
    end: float


class Waiting(NamedTuple):
    """A pass of a stage and the passes that must have ended: of its own stage none, of others their place in order."""

    stage: int
    step: ScheduledPass
    own: tuple[int, ...]
    others: tuple[int, ...]


@lru_cache(maxsize=16)
def in_order(schedule: Schedule, size: ScheduleSize) -> tuple[Waiting, ...]:
    """Every pass of every stage, each after all that it waits for; no time matters to that.

    Raises:
        DeadlockError: a stage waits for what no stage comes to send.

    """
    orders = [list(steps(schedule, size, stage)) for stage in range(size.stages)]
    place: dict[tuple[int, ScheduledPass], int] = {}
    found: list[Waiting] = []
    ready, waiting = list(range(size.stages)), dict[tuple[int, ScheduledPass], list[int]]()
    done = [0] * size.stages
    while ready:
        stage = ready.pop()
        for step in orders[stage][done[stage] :]:
            needs = takes(step, stage, size)
            missing = next((each for each in needs if each not in place), None)
            if missing is not None:
                waiting.setdefault(missing, []).append(stage)
                break
            done[stage] += 1
            own = tuple(place[each] for each in needs if each[0] == stage)
            found.append(Waiting(stage, step, own, tuple(place[each] for each in needs if each[0] != stage)))
            place[stage, step] = len(found) - 1
            ready += waiting.pop((stage, step), ())
    stuck = {stage: ended for stage, ended in enumerate(done) if ended < len(orders[stage])}
    if stuck:
        raise DeadlockError(stuck)
    return tuple(found)


def starts(
    order: Sequence[Waiting], size: ScheduleSize, takes_seconds: Duration, hop: float
) -> list[tuple[float, float]]:
    """When each pass of `order` starts and ends. hop: what a hidden state needs to the next stage."""
    free, ended = [0.0] * size.stages, list[tuple[float, float]]()
    known: dict[tuple[int, int, PassKind], float] = {}  # a pass takes as long whatever its micro-batch
    for stage, step, own, others in order:
        alike = (stage, step.chunk, step.kind)
        if alike not in known:
            known[alike] = takes_seconds(stage, step)
        start = free[stage]
        for at in own:
            start = max(start, ended[at][1])
        for at in others:
            start = max(start, ended[at][1] + hop)
        free[stage] = start + known[alike]
        ended.append((start, free[stage]))
    return ended


def runs(schedule: Schedule, size: ScheduleSize, takes_seconds: Duration, hop: float) -> list[list[Run]]:
    """Every pass of every stage. takes_seconds: of a pass, the same for every micro-batch.

    Raises:
        DeadlockError: a stage waits for what no stage comes to send.

    """
    order = in_order(schedule, size)
    found: list[list[Run]] = [[] for _ in range(size.stages)]
    for each, (start, end) in zip(order, starts(order, size, takes_seconds, hop), strict=True):
        found[each.stage].append(Run(each.stage, each.step, start, end))
    return found


def length(found: Sequence[Sequence[Run]]) -> float:
    """When the last pass ends."""
    return max((own[-1].end for own in found if own), default=0.0)


def step_length(schedule: Schedule, size: ScheduleSize, takes_seconds: Duration, hop: float) -> float:
    """How long the passes of a step take.

    A schedule of many micro-batches repeats itself: where they are more than eight times the stages, two shorter runs
    say what each further one adds.
    """
    turn = size.stages * max(1, ceil_divide(size.group or size.stages, size.stages))
    if size.micro_batches <= 8 * turn:
        return _ends(schedule, size, takes_seconds, hop)
    left = size.micro_batches % turn
    short, longer = (size._replace(micro_batches=times * turn + left) for times in (4, 6))
    first, second = (_ends(schedule, each, takes_seconds, hop) for each in (short, longer))
    more = (size.micro_batches - longer.micro_batches) / (longer.micro_batches - short.micro_batches)
    return second + more * (second - first)


def _ends(schedule: Schedule, size: ScheduleSize, takes_seconds: Duration, hop: float) -> float:
    return max((end for _, end in starts(in_order(schedule, size), size, takes_seconds, hop)), default=0.0)
