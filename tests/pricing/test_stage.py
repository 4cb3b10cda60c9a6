"""A stage's peak event, from chunks that are only figures."""

from __future__ import annotations

from typing import Any, cast

import pytest

import mla_cost
from mla_cost.declared.schedules import SCHEDULES
from mla_cost.language.evaluate import LiveBytes
from mla_cost.mesh.degrees import Parallel
from mla_cost.mesh.schedule import passes
from mla_cost.pricing.stage import ChunkCost, Part, activations, during
from mla_cost.results import columns

TWO = Parallel(pp=2, virtual_stages=2, num_micro_batches=2)


def chunk(kept: int, forward: int, backward: int) -> ChunkCost:
    """A chunk of one layer that keeps `kept` bytes and has so many alive in each direction."""
    parts = [Part(0, cast("Any", None), LiveBytes(0, most), 0) for most in (forward, backward)]
    return ChunkCost((), kept, *parts)


def test_a_chunk_works_beside_what_the_schedule_keeps_then() -> None:
    """The last of two stages, two micro-batches: chunk 1 works beside both of chunk 0, which goes back beside one."""
    worst = activations(TWO, 1, (chunk(10, 12, 100), chunk(50, 60, 55)))
    assert (worst.bytes, worst.saved_in_flight, worst.working) == (10 + 100, 10, 100)
    assert (worst.in_flight, worst.chunk) == ((2, 0), 0)
    worst = activations(TWO, 1, (chunk(10, 12, 40), chunk(50, 60, 55)))
    assert (worst.bytes, worst.in_flight, worst.chunk) == (20 + 60, (2, 1), 1)


def test_many_micro_batches_cost_what_some_do() -> None:
    chunks = [chunk(10, 12, 100), chunk(50, 60, 55), chunk(7, 80, 90)]
    few, many = (Parallel(pp=4, virtual_stages=3, num_micro_batches=m) for m in (40, 10_000))
    for stage in range(4):
        assert activations(few, stage, chunks) == activations(many, stage, chunks)


def test_a_stage_without_layers_works_on_nothing() -> None:
    worst = activations(Parallel(pp=2, num_micro_batches=2), 0, [ChunkCost((), 0, None, None)])
    assert (worst.bytes, worst.where) == (0, "")


@pytest.mark.parametrize("degrees", [{"pp": 1}, {"pp": 3, "micro_batches": 4}])
def test_what_a_rank_saves_is_what_one_micro_batch_keeps_on_the_worst_stage(degrees):
    settings: Any = {"scope": "model", "sp": 1, "seq_len": 1024, **degrees}
    [result] = mla_cost.plan(model="deepseek-v2-lite", device=None, form=("explicit",), **settings).results
    worst = (result.memory.stages or ())[int(result.settings["stage"])]
    assert result.memory.saved_bytes == worst.saved_bytes > 0
    others = max(0, worst.in_flight[0] - 1)
    assert worst.kept_bytes == others * worst.saved_bytes


def test_rows_of_plans_tell_scope_and_profile():
    asked: Any = {"model": "deepseek-v3", "device": "h100-80gb", "form": ("explicit",), "sp": 1, "scope": "model"}
    [row] = columns.plan_rows(mla_cost.plan(**asked, profile="megatron"))
    assert (row["scope"], row["profile"], row["status"]) == ("model", "megatron", "oom")


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("stage", range(3))
def test_the_worst_event_is_that_of_every_pass_walked(name: str, stage: int) -> None:
    chunks = [chunk(10, 12, 100), chunk(50, 60, 55)][: 2 if name == "interleaved" else 1]
    for m in (3, 6, 30):
        parallel = Parallel(pp=3, virtual_stages=len(chunks), num_micro_batches=m, schedule=SCHEDULES[name])
        every = [during(at, chunks) for at in passes(parallel, stage)]
        assert activations(parallel, stage, chunks).bytes == max(event.bytes for event in every)
