"""A stage's worst moment, from chunks that are only figures."""

from __future__ import annotations

from typing import Any, cast

from mla_cost.evaluate import Moment
from mla_cost.parallel import Parallel
from mla_cost.stage import ChunkCost, Part, activations

TWO = Parallel(pp=2, virtual_stages=2, micro_batches=2)


def chunk(kept: int, forward: int, backward: int) -> ChunkCost:
    """A chunk of one layer that keeps `kept` bytes and has so many alive in each direction."""
    parts = [Part(0, cast("Any", None), Moment(0, most), 0) for most in (forward, backward)]
    return ChunkCost((), kept, *parts)


def test_a_chunk_works_beside_what_the_schedule_keeps_then() -> None:
    """The last of two stages, two micro-batches: chunk 1 works beside both of chunk 0, which goes back beside one."""
    worst = activations(TWO, 1, (chunk(10, 12, 100), chunk(50, 60, 55)))
    assert (worst.bytes, worst.kept, worst.working) == (10 + 100, 10, 100)
    assert (worst.in_flight, worst.chunk) == ((2, 0), 0)
    worst = activations(TWO, 1, (chunk(10, 12, 40), chunk(50, 60, 55)))
    assert (worst.bytes, worst.in_flight, worst.chunk) == (20 + 60, (2, 1), 1)


def test_many_micro_batches_cost_what_some_do() -> None:
    chunks = [chunk(10, 12, 100), chunk(50, 60, 55), chunk(7, 80, 90)]
    few, many = (Parallel(pp=4, virtual_stages=3, micro_batches=m) for m in (40, 10_000))
    for stage in range(4):
        assert activations(few, stage, chunks) == activations(many, stage, chunks)


def test_a_stage_without_layers_works_on_nothing() -> None:
    worst = activations(Parallel(pp=2, micro_batches=2), 0, [ChunkCost((), 0, None, None)])
    assert (worst.bytes, worst.where) == (0, "")
