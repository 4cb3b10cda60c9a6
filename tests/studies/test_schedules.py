"""A schedule that nothing but its declaration knows of: plan, sweep and search price it as its table says."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import mla_cost
from mla_cost.declared.schedules import SCHEDULES
from mla_cost.language.schedule import PassKind, Repeat, Schedule, ScheduleSize, Turn, table

ASKED: dict[str, Any] = {"model": "deepseek-v2-lite", "device": "h200-141gb", "form": "explicit", "seq_len": 2048}


def by_twos(size: ScheduleSize, stage: int) -> Iterator[Turn | Repeat]:
    """Two steps ahead of 1F1B: p - i + 1 forwards first, then a backward and a forward in turn."""
    ahead = min(size.num_micro_batches, size.stages - stage + 1)
    forward, backward = (Turn(kind) for kind in PassKind)
    yield Repeat(ahead, (forward,))
    yield Repeat(size.num_micro_batches - ahead, (backward, forward))
    yield Repeat(ahead, (backward,))


@pytest.fixture
def made_up(monkeypatch: pytest.MonkeyPatch) -> str:
    schedule = Schedule("by-twos", "made up", "this test", by_twos, lambda _: iter(()))
    monkeypatch.setitem(SCHEDULES, schedule.name, schedule)
    return schedule.name


def kept(size: ScheduleSize, stage: int) -> int:
    """The most in flight at a stage, row by row."""
    now = most = 0
    for row in sorted(table(SCHEDULES["by-twos"], size), key=lambda row: row.slot):
        if row.stage == stage:
            now += 1 if row.kind is PassKind.FORWARD else -1
            most = max(most, now)
    return most


def test_a_plan_keeps_what_its_table_keeps(made_up: str) -> None:
    for m in (1, 2, 5, 9):
        found = mla_cost.plan(**ASKED, pp=3, micro_batches=m, dp=4, schedule=made_up).results[0]
        stages = found.memory.stages or ()
        for stage in stages:
            most = kept(ScheduleSize(3, 1, m), stage.stage)
            assert (stage.in_flight, stage.kept_bytes) == ((most,), (most - 1) * stage.saved_bytes)
        usual = mla_cost.plan(**ASKED, pp=3, micro_batches=m, dp=4).results[0].memory.stages or ()
        more = [mine.kept_bytes - own.kept_bytes for mine, own in zip(stages, usual, strict=True)]
        assert more == [
            (kept(ScheduleSize(3, 1, m), stage.stage) - min(m, 3 - stage.stage)) * stage.saved_bytes for stage in usual
        ]


def test_sweeps_and_searches_price_it_as_plans_do(made_up: str) -> None:
    over: dict[str, Any] = {"schedule": [made_up, None, "gpipe"], "micro_batches": [1, 8], "pp": [1, 3]}
    study = mla_cost.sweep(**ASKED, dp=4, over=over)
    for row in map(study.row, range(len(study))):
        point: dict[str, Any] = {name: None if row[name] == "null" else row[name] for name in over}
        planned = mla_cost.plan(**ASKED, dp=4, **point).results[0].verdict
        assert planned is not None
        assert row["required_bytes"] == planned.required_bytes
    asked: dict[str, Any] = {"devices": 12, "global_batch": 24, "pp": 3, "tp": 1, "sp": 1, "ep": 1, "micro_batch": 1}
    asked |= {"max_idle": 60, "remat": "none", "sharding": "distributed"}
    found = mla_cost.search(ASKED["model"], ASKED["device"], **asked, form="explicit", seq_len=2048, schedule=made_up)
    assert found.best is not None
    (planned_row,) = mla_cost.plan(**ASKED, pp=3, micro_batches=6, dp=4, schedule=made_up).results
    assert planned_row.verdict is not None
    assert found.best.required_bytes == planned_row.verdict.required_bytes
    taken = 1 + max(row.slot for row in table(SCHEDULES[made_up], ScheduleSize(3, 1, 6)))
    assert found.best.idle == (taken - 12) / taken
    assert f"--schedule {made_up}" in found.best.command


def test_a_search_rules_out_what_a_schedule_refuses() -> None:
    """Each of the refusals, and the way out of it taken."""
    asked: dict[str, Any] = {"devices": 12, "global_batch": 24, "pp": 3, "tp": 1, "sp": 1, "ep": 1, "form": "explicit"}
    asked |= {"max_idle": 60, "remat": "none", "sharding": "distributed", "seq_len": 2048}
    ruled = mla_cost.search(ASKED["model"], ASKED["device"], **asked, virtual_stages=[1, 3], schedule="gpipe")
    rule = next(row for row in ruled.ruled_out if row.rule == "schedule")
    assert rule.example == "schedule gpipe runs one chunk a stage, and stages have 3; leave schedule out"
    left_out = mla_cost.search(ASKED["model"], ASKED["device"], **asked, virtual_stages=[1, 3])
    assert not any(row.rule == "schedule" for row in left_out.ruled_out)
    plain = {**ASKED, "pp": 3, "micro_batches": 3, "dp": 4}
    for name, chunks, reason in (
        ("interleaved", 1, "schedule interleaved lets chunks of a stage take turns, and virtual_stages is 1"),
        ("1f1b", 3, "schedule 1f1b runs one chunk a stage, and stages have 3"),
    ):
        row = mla_cost.plan(**plain, virtual_stages=chunks, schedule=name).results[0]
        assert row.verdict is not None
        assert row.verdict.reason == f"{reason}; leave schedule out"
        again = mla_cost.plan(**plain, virtual_stages=chunks).results[0]
        assert again.verdict is not None
        assert again.verdict.status != "illegal"
