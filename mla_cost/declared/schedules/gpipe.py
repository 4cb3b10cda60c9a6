"""GPipe: a stage runs the forward of every micro-batch, then every backward."""

from __future__ import annotations

from collections.abc import Iterator

from mla_cost.declared.schedules._common import one_chunk, slots
from mla_cost.language.schedule import PassKind, Repeat, Schedule, ScheduleSize, Turn


def word(size: ScheduleSize, stage: int) -> Iterator[Repeat]:
    """All forwards, then all backwards, on every stage alike."""
    del stage
    yield Repeat(size.num_micro_batches, (Turn(PassKind.FORWARD),))
    yield Repeat(size.num_micro_batches, (Turn(PassKind.BACKWARD),))


SCHEDULE = Schedule(
    name="gpipe",
    title="all forwards, then all backwards: every micro-batch of a step is in flight at once",
    source="Huang et al. 2019, arXiv:1811.06965, section 2.3 and figure 2c; pytorch/pytorch, ScheduleGPipe",
    word=word,
    problems=one_chunk("gpipe"),
    slots=slots,
)
