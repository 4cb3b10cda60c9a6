"""Interleaved 1F1B: groups of micro-batches visit one chunk after the other, and go back in the reverse order."""

from __future__ import annotations

from collections.abc import Iterator

from mla_cost.declared.schedules._common import slots
from mla_cost.errors import Problem
from mla_cost.language.schedule import PassKind, Repeat, Schedule, ScheduleSize, Turn


class _Visits:
    """The forwards of a stage in order: chunk by chunk for each group, the last group with what is left."""

    def __init__(self, size: ScheduleSize) -> None:
        self.chunks, self.num_micro_batches, self.group = size.chunks, size.num_micro_batches, _group(size)

    @property
    def total(self) -> int:
        """Passes each way."""
        return self.chunks * self.num_micro_batches

    def at(self, step: int) -> tuple[int | None, int]:
        """The chunk of a forward by its number, and the number after its visit; no chunk outside all visits."""
        if not 0 <= step < self.total:
            return None, 0 if step < 0 else 2 * self.total
        group, inside = divmod(step, self.group * self.chunks)
        members = min(self.group, self.num_micro_batches - group * self.group)
        chunk, within = divmod(inside, members)
        return chunk, step - within + members


def _group(size: ScheduleSize) -> int:
    return size.stages if size.group is None else size.group


def warm_up(size: ScheduleSize, stage: int) -> int:
    """Forwards before the one that the first backward follows."""
    ahead = 2 * (size.stages - stage - 1) + (size.chunks - 1) * _group(size)
    return min(size.chunks * size.num_micro_batches - 1, ahead)


def word(size: ScheduleSize, stage: int) -> Iterator[Repeat]:
    """Warm-up, pairs of a forward and a backward, cool-down; rounds in which all groups are full repeat."""
    visits, ramp = _Visits(size), warm_up(size, stage)
    one_round = visits.group * visits.chunks
    whole = size.num_micro_batches // visits.group * one_round
    rounds = max(0, whole - ramp) // one_round
    yield from _aligned(visits, ramp, 0, ramp)
    yield Repeat(rounds, tuple(_aligned(visits, ramp, ramp, ramp + one_round)) if rounds else ())
    yield from _aligned(visits, ramp, ramp + rounds * one_round, visits.total + ramp)


def _aligned(visits: _Visits, ramp: int, start: int, end: int) -> Iterator[Repeat]:
    """What runs from one number of a forward to another: backwards follow `ramp` forwards behind."""
    while start < end:
        (ahead, until), (back, behind) = visits.at(start), visits.at(start - ramp)
        stop = min(end, until, behind + ramp)
        forward = () if ahead is None else (Turn(PassKind.FORWARD, ahead),)
        backward = () if back is None else (Turn(PassKind.BACKWARD, visits.chunks - 1 - back),)
        yield Repeat(stop - start, (*forward, *backward))
        start = stop


def problems(size: ScheduleSize) -> Iterator[Problem]:
    """What Megatron's interleaved schedule asks of micro-batches and their groups."""
    m, p, g = size.num_micro_batches, size.stages, _group(size)
    if size.chunks == 1:
        message = "schedule interleaved lets chunks of a stage take turns, and virtual_stages is 1"
        yield Problem("schedule", message, "leave schedule out")
    elif p == 1:
        message = f"virtual_stages is {size.chunks}, but pp is 1: only a pipeline interleaves"
        yield Problem("virtual_stages", message, "change virtual_stages to 1 or pp to 2 or more")
    elif g < p:
        way_out = f"change micro_batch_group to {p} or more"
        yield Problem("micro_batch_group", f"micro_batch_group {g} is below pp {p}", way_out)
    elif g > m:
        message = f"an interleaved schedule takes groups of {g} micro-batches, but there are {m}"
        yield Problem("micro_batches", message, f"change micro_batches to {g} or more")
    elif 0 < m % g < p:
        message = f"the last group of {m} micro-batches in groups of {g} holds {m % g}, fewer than pp {p}"
        yield Problem("micro_batches", message, f"change micro_batches to {m - m % g} or {m - m % g + g}")


SCHEDULE = Schedule(
    name="interleaved",
    title="1F1B whose chunks of a stage take turns",
    source="NVIDIA/Megatron-LM@d98e8a64 pipeline_parallel/schedules.py, forward_backward_pipelining_with_interleaving",
    word=word,
    problems=problems,
    slots=slots,
)
