"""What several schedules have alike."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from mla_cost.errors import Problem
from mla_cost.language.schedule import ScheduleSize


def one_chunk(name: str) -> Callable[[ScheduleSize], Iterator[Problem]]:
    """The rules of a schedule without turns of chunks: one chunk a stage, and no groups of micro-batches."""

    def problems(size: ScheduleSize) -> Iterator[Problem]:
        if size.chunks > 1:
            message = f"schedule {name} runs one chunk a stage, and stages have {size.chunks}"
            yield Problem("schedule", message, "leave schedule out")
        elif size.group is not None:
            message = "only an interleaved schedule has groups of micro-batches, and virtual_stages is 1"
            yield Problem("micro_batch_group", message, "leave micro_batch_group out or state virtual_stages")

    return problems


def slots(size: ScheduleSize) -> int:
    """Slots of a step that only waits on the way to the last stage and back: its passes, and the others' way twice."""
    return 2 * (size.chunks * size.num_micro_batches + size.stages - 1)
