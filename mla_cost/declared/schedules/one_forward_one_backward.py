"""1F1B: a stage warms up with a forward for each stage after it, then runs a forward and a backward in turn."""

from __future__ import annotations

from collections.abc import Iterator

from mla_cost.declared.schedules._common import one_chunk, slots
from mla_cost.language.schedule import PassKind, Repeat, Schedule, ScheduleSize, Turn

_FORWARD, _BACKWARD = Turn(PassKind.FORWARD), Turn(PassKind.BACKWARD)


def word(size: ScheduleSize, stage: int) -> Iterator[Repeat]:
    """Warm-up, pairs, cool-down."""
    ahead = min(size.num_micro_batches, size.stages - stage) - 1
    yield Repeat(ahead, (_FORWARD,))
    yield Repeat(size.num_micro_batches - ahead, (_FORWARD, _BACKWARD))
    yield Repeat(ahead, (_BACKWARD,))


SCHEDULE = Schedule(
    name="1f1b",
    title="one forward, one backward: at most as many micro-batches in flight as stages from here on",
    source=(
        "NVIDIA/Megatron-LM@d98e8a64 pipeline_parallel/schedules.py, forward_backward_pipelining_without_interleaving"
    ),
    word=word,
    problems=one_chunk("1f1b"),
    fills=True,
    slots=slots,
)
