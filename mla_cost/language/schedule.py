"""What a pipeline schedule is: for every stage a word of passes with repeats, the rows it stands for, their slots.

A word is never unrolled to be priced, so work does not grow with the micro-batches. Its rows are what it means: stage,
slot, kind of pass, chunk, micro-batch, all from 0. Chunk c of stage i of p is part c p + i of the model.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from mla_cost.errors import Problem


class PassKind(StrEnum):
    """What a pass does with a micro-batch: its forward, or its backward, of input and weights together."""

    FORWARD = "forward"
    BACKWARD = "backward"


class Turn(NamedTuple):
    """One pass through a chunk. micro_batch None: the next that has not made this kind of pass there."""

    kind: PassKind
    chunk: int = 0
    micro_batch: int | None = None


class Repeat(NamedTuple):
    """A word that runs so many times in a row; none where times is 0 or less."""

    times: int
    body: tuple[Turn | Repeat, ...]


class ScheduleSize(NamedTuple):
    """What a schedule is asked for. chunks: of each stage. group: micro-batches of a turn, None where nobody said."""

    stages: int
    chunks: int
    num_micro_batches: int
    group: int | None = None


class ScheduledPass(NamedTuple):
    """One pass of a stage."""

    kind: PassKind
    chunk: int
    micro_batch: int


class ScheduleRow(NamedTuple):
    """One row of the table that a schedule is."""

    stage: int
    slot: int
    kind: PassKind
    chunk: int
    micro_batch: int

    def __str__(self) -> str:
        """In words."""
        return f"{self.kind} of micro-batch {self.micro_batch} through chunk {self.chunk} on stage {self.stage}"


@dataclass(frozen=True)
class Schedule:
    """One declaration.

    word: the passes of a stage, in order. problems: what it asks of its size, with the way out of each. fills: whether
    its passes are those of as many micro-batches as stages where there are more, each repeated. slots: how many slots
    it takes where every pass takes one, were that known; else the table is walked.

    Raises:
        TypeError: `problems` gives no `Problem`s: asked once, for the smallest pipeline.

    """

    name: str
    title: str
    source: str
    word: Callable[[ScheduleSize, int], Iterable[Turn | Repeat]]
    problems: Callable[[ScheduleSize], Iterator[Problem]]
    fills: bool = False
    slots: Callable[[ScheduleSize], int] | None = None

    def __post_init__(self) -> None:
        for found in self.problems(ScheduleSize(stages=1, chunks=1, num_micro_batches=1)):
            if not isinstance(found, Problem):
                raise TypeError(f"schedule {self.name}: problems gives a Problem each, not {type(found).__name__}")


class DeadlockError(Exception):
    """Stages that wait for each other. stuck: of every such stage, the number of the pass that cannot start."""

    def __init__(self, stuck: dict[int, int]) -> None:
        super().__init__(f"stages {', '.join(map(str, stuck))} wait for each other")
        self.stuck = stuck


def unrolled(word: Iterable[Turn | Repeat]) -> Iterator[Turn]:
    """Every pass of a word, in order."""
    for item in word:
        if isinstance(item, Turn):
            yield item
        else:
            for _ in range(item.times):
                yield from unrolled(item.body)


def steps(schedule: Schedule, size: ScheduleSize, stage: int) -> Iterator[ScheduledPass]:
    """The passes of a stage in order, micro-batches named."""
    done: Counter[tuple[PassKind, int]] = Counter()
    for kind, chunk, micro_batch in unrolled(schedule.word(size, stage)):
        yield ScheduledPass(kind, chunk, done[kind, chunk] if micro_batch is None else micro_batch)
        done[kind, chunk] += 1


def table(schedule: Schedule, size: ScheduleSize) -> list[ScheduleRow]:
    """Every pass of every stage, each in the first slot that it can run in.

    Raises:
        DeadlockError: as `slots`.

    """
    orders = [list(steps(schedule, size, stage)) for stage in range(size.stages)]
    return [
        ScheduleRow(stage, slot, *step)
        for stage, (order, at) in enumerate(zip(orders, slots(orders, size), strict=True))
        for step, slot in zip(order, at, strict=True)
    ]


def length(schedule: Schedule, size: ScheduleSize) -> int:
    """The slots that a step takes, were all passes alike: exact, and walked unless the schedule says it."""
    if schedule.slots is not None:
        return schedule.slots(size)
    return 1 + max((row.slot for row in table(schedule, size)), default=-1)


def takes(step: ScheduledPass, stage: int, size: ScheduleSize) -> tuple[tuple[int, ScheduledPass], ...]:
    """The passes, each with its stage, that have to be done before a pass of a stage can start."""
    kind, chunk, micro_batch = step
    part, last = chunk * size.stages + stage, size.chunks * size.stages - 1
    if kind is PassKind.FORWARD:
        return (_of_part(kind, part - 1, micro_batch, size),) if part else ()
    own = stage, ScheduledPass(PassKind.FORWARD, chunk, micro_batch)
    return (own,) if part == last else (own, _of_part(kind, part + 1, micro_batch, size))


def _of_part(kind: PassKind, part: int, micro_batch: int, size: ScheduleSize) -> tuple[int, ScheduledPass]:
    chunk, stage = divmod(part, size.stages)
    return stage, ScheduledPass(kind, chunk, micro_batch)


def slots(orders: Sequence[Sequence[ScheduledPass]], size: ScheduleSize) -> list[list[int]]:
    """For the passes of every stage in order, the first slot of each: one pass, one slot; what is sent is there next.

    Raises:
        DeadlockError: a stage whose next pass takes what no stage comes to send.

    """
    done: dict[tuple[int, ScheduledPass], int] = {}
    found: list[list[int]] = [[] for _ in orders]
    waiting: dict[tuple[int, ScheduledPass], list[int]] = {}
    ready = list(range(len(orders)))
    while ready:
        stage = ready.pop()
        own, order = found[stage], orders[stage]
        while len(own) < len(order):
            step = order[len(own)]
            missing = next((each for each in takes(step, stage, size) if each not in done), None)
            if missing is not None:
                waiting.setdefault(missing, []).append(stage)
                break
            before = [done[each] for each in takes(step, stage, size)]
            slot = 1 + max([*before, *own[-1:]], default=-1)
            own.append(slot)
            done[stage, step] = slot
            ready += waiting.pop((stage, step), ())
    every = enumerate(zip(found, orders, strict=True))
    stuck = {stage: len(own) for stage, (own, order) in every if len(own) < len(order)}
    if stuck:
        raise DeadlockError(stuck)
    return found
