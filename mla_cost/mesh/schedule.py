"""What is in flight while a stage runs its schedule, and beside which passes most of it is.

A word of passes with repeats is followed by the first and the last time that each repeat runs: in between what is kept
grows or shrinks evenly, so whatever the chunks' bytes, the most is kept at an end. Work does not grow with the
micro-batches.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import NamedTuple

from mla_cost.declared.schedules import usual
from mla_cost.language.schedule import PassKind, Repeat, Schedule, ScheduledPass, ScheduleSize, Turn, length, steps
from mla_cost.mesh.degrees import Parallel


class PassInFlight(NamedTuple):
    """A pass through a chunk. beside: micro-batches that each chunk keeps meanwhile, but for the one at work."""

    kind: PassKind
    chunk: int
    beside: tuple[int, ...]


def schedule_of(parallel: Parallel) -> Schedule:
    """The schedule of a pipeline: the one named, else the usual one for its chunks."""
    return parallel.schedule or usual(parallel.chunks)


def size_of(parallel: Parallel) -> ScheduleSize:
    """What a schedule is asked for."""
    return ScheduleSize(parallel.pp, parallel.chunks, parallel.num_micro_batches, parallel.group_size)


def enough(parallel: Parallel) -> Parallel:
    """The same pipeline with no more micro-batches than its schedule tells apart: stages keep and run as much."""
    most = parallel.pp if schedule_of(parallel).fills else parallel.num_micro_batches
    return parallel._replace(num_micro_batches=min(parallel.num_micro_batches, most))


def passes_in_order(parallel: Parallel, stage: int) -> Iterator[ScheduledPass]:
    """The passes of `stage`, from 0, with the micro-batch of each."""
    return steps(schedule_of(parallel), size_of(parallel), stage)


def passes(parallel: Parallel, stage: int) -> Iterator[PassInFlight]:
    """The same with what is kept beside each: the brute force that `worst_passes` is compared with."""
    held = [0] * parallel.chunks
    for step in passes_in_order(parallel, stage):
        yield _passed(Turn(step.kind, step.chunk), held)


def in_flight(parallel: Parallel, stage: int) -> int:
    """Most chunks whose forward is kept at once at `stage` (from 0); without virtual stages, micro-batches."""
    return max(sum(at.beside) for at in worst_passes(parallel, stage)) + 1


def idle(parallel: Parallel) -> tuple[int, int]:
    """Slots in which a stage waits, and those that the schedule takes, were all passes alike."""
    size = size_of(parallel)
    taken = _length(schedule_of(parallel), size)
    return taken - 2 * size.chunks * size.num_micro_batches, taken


@lru_cache(maxsize=4096)
def _length(schedule: Schedule, size: ScheduleSize) -> int:
    return length(schedule, size)


def worst_passes(parallel: Parallel, stage: int) -> tuple[PassInFlight, ...]:
    """Passes of the schedule, in order, one of which is the worst event of the stage whatever the chunks' bytes.

    Those beside which another of the same chunk and kind has as much kept are left out.
    """
    return _worst(schedule_of(parallel), size_of(parallel), stage)


@lru_cache(maxsize=4096)
def _worst(schedule: Schedule, size: ScheduleSize, stage: int) -> tuple[PassInFlight, ...]:
    alike: dict[tuple[PassKind, int], dict[PassInFlight, None]] = {}
    for at in _ends(schedule.word(size, stage), [0] * size.chunks):
        alike.setdefault((at.kind, at.chunk), {})[at] = None
    return tuple(at for group in alike.values() for at in group if not any(_covers(other, at) for other in group))


def _ends(word: Iterable[Turn | Repeat], held: list[int]) -> Iterator[PassInFlight]:
    """The passes of the first and the last time that every repeat runs, in order; `held` follows what is kept."""
    for item in word:
        if isinstance(item, Turn):
            yield _passed(item, held)
        elif item.times > 0:
            before = tuple(held)
            yield from _ends(item.body, held)
            if item.times > 1:
                each = [after - kept for after, kept in zip(held, before, strict=True)]
                held[:] = [kept + (item.times - 2) * more for kept, more in zip(held, each, strict=True)]
                yield from _ends(item.body, held)


def _passed(turn: Turn, held: list[int]) -> PassInFlight:
    """A pass, after which `held` is what is kept."""
    made = turn.kind is PassKind.FORWARD
    held[turn.chunk] -= not made
    found = PassInFlight(turn.kind, turn.chunk, tuple(held))
    held[turn.chunk] += made
    return found


def _covers(other: PassInFlight, one: PassInFlight) -> bool:
    """Whether as much is kept beside the other of two passes, chunk by chunk, and they are not the same."""
    return other != one and all(map(int.__ge__, other.beside, one.beside))
