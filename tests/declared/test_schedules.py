"""Every schedule as the table that it is: each pass once, in an order that no stage waits in for ever."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mla_cost.declared.schedules import SCHEDULES, usual
from mla_cost.language.schedule import (
    DeadlockError,
    PassKind,
    ScheduledPass,
    ScheduleSize,
    length,
    slots,
    steps,
    table,
    takes,
)

FORWARD, BACKWARD = PassKind


@st.composite
def sizes(draw: st.DrawFn) -> ScheduleSize:
    """Sizes of which every schedule takes some."""
    p, v = draw(st.integers(1, 5)), draw(st.integers(1, 3))
    group = draw(st.one_of(st.none(), st.integers(p, 2 * p))) if v > 1 else None
    return ScheduleSize(p, v, draw(st.integers(1, 14)), group)


@pytest.mark.parametrize("name", SCHEDULES)
@given(size=sizes())
def test_every_pass_runs_once_in_an_order_that_ends(name: str, size: ScheduleSize) -> None:
    schedule = SCHEDULES[name]
    if list(schedule.problems(size)):
        return
    rows = table(schedule, size)
    everything = {
        (stage, kind, chunk, m)
        for stage in range(size.stages)
        for kind in PassKind
        for chunk in range(size.chunks)
        for m in range(size.num_micro_batches)
    }
    assert Counter((row.stage, *row[2:]) for row in rows) == Counter(everything)
    slot = {(row.stage, ScheduledPass(*row[2:])): row.slot for row in rows}
    for row in rows:
        for each in takes(ScheduledPass(*row[2:]), row.stage, size):
            assert slot[each] < row.slot
    for stage in range(size.stages):
        own = [row.slot for row in rows if row.stage == stage]
        assert all(first < second for first, second in pairwise(own))
    assert length(schedule, size) == 1 + max(row.slot for row in rows)


def test_the_schedule_of_the_gpipe_paper() -> None:
    """Four partitions, four micro-batches, as in figure 2c there: rows of forwards, then of backwards.

    By hand: stage i runs forward m in slot i + m and backward m in slot 7 + (3 - i) + m, so 14 slots, 6 of them idle.
    """
    rows = table(SCHEDULES["gpipe"], ScheduleSize(4, 1, 4))
    assert {(row.stage, row.kind, row.micro_batch): row.slot for row in rows} == {
        **{(i, FORWARD, m): i + m for i in range(4) for m in range(4)},
        **{(i, BACKWARD, m): 7 + 3 - i + m for i in range(4) for m in range(4)},
    }
    assert length(SCHEDULES["gpipe"], ScheduleSize(4, 1, 4)) == 14


def test_one_forward_one_backward_of_three_stages() -> None:
    """Typed from Megatron's order: F F F B F B B B, F F B F B F B B and F B F B F B F B of four micro-batches."""

    def words(stage: int) -> str:
        return " ".join(
            f"{'FB'[step.kind is BACKWARD]}{step.micro_batch}"
            for step in steps(SCHEDULES["1f1b"], ScheduleSize(3, 1, 4), stage)
        )

    assert [words(stage) for stage in range(3)] == [
        "F0 F1 F2 B0 F3 B1 B2 B3",
        "F0 F1 B0 F2 B1 F3 B2 B3",
        "F0 B0 F1 B1 F2 B2 F3 B3",
    ]


def test_the_usual_schedule_follows_the_chunks() -> None:
    assert [usual(chunks).name for chunks in (1, 2, 8)] == ["1f1b", "interleaved", "interleaved"]


def test_stages_that_wait_for_each_other_are_told() -> None:
    """The first stage runs a backward that the second only gives after a forward that the first has yet to send."""
    first = [(FORWARD, 0), (BACKWARD, 0), (FORWARD, 1), (BACKWARD, 1)]
    second = [(FORWARD, 0), (FORWARD, 1), (BACKWARD, 0), (BACKWARD, 1)]
    orders = [[ScheduledPass(kind, 0, m) for kind, m in order] for order in (first, second)]
    with pytest.raises(DeadlockError, match="stages 0, 1 wait for each other") as error:
        slots(orders, ScheduleSize(2, 1, 2))
    assert error.value.stuck == {0: 1, 1: 1}
