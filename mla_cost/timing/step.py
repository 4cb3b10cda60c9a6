"""A pipeline schedule run over passes that take their own time: when each starts, when the step ends, who waits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from mla_cost.language.numbers import ceil_divide
from mla_cost.language.schedule import DeadlockError, Schedule, ScheduledPass, ScheduleSize, steps, takes

Duration = Callable[[int, ScheduledPass], float]


class Run(NamedTuple):
    """One pass of a stage: when it starts and ends, in seconds from the start of the step."""

    stage: int
    step: ScheduledPass
    start: float
    end: float


def runs(schedule: Schedule, size: ScheduleSize, takes_seconds: Duration, hop: float) -> list[list[Run]]:
    """Every pass of every stage. takes_seconds: of a pass; hop: what a hidden state needs to the next stage.

    Raises:
        DeadlockError: a stage waits for what no stage comes to send.

    """
    orders = [list(steps(schedule, size, stage)) for stage in range(size.stages)]
    done: dict[tuple[int, ScheduledPass], float] = {}
    found: list[list[Run]] = [[] for _ in orders]
    ready, waiting = list(range(size.stages)), dict[tuple[int, ScheduledPass], list[int]]()
    while ready:
        stage = ready.pop()
        own = found[stage]
        while len(own) < len(orders[stage]):
            step = orders[stage][len(own)]
            needs = takes(step, stage, size)
            missing = next((each for each in needs if each not in done), None)
            if missing is not None:
                waiting.setdefault(missing, []).append(stage)
                break
            start = max([own[-1].end if own else 0.0, *(done[each] + hop * (each[0] != stage) for each in needs)])
            own.append(Run(stage, step, start, start + takes_seconds(stage, step)))
            done[stage, step] = own[-1].end
            ready += waiting.pop((stage, step), ())
    stuck = {stage: len(own) for stage, own in enumerate(found) if len(own) < len(orders[stage])}
    if stuck:
        raise DeadlockError(stuck)
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
        return length(runs(schedule, size, takes_seconds, hop))
    left = size.micro_batches % turn
    short, longer = (size._replace(micro_batches=times * turn + left) for times in (4, 6))
    first, second = (length(runs(schedule, each, takes_seconds, hop)) for each in (short, longer))
    more = (size.micro_batches - longer.micro_batches) / (longer.micro_batches - short.micro_batches)
    return second + more * (second - first)
