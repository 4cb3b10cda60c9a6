"""Passes in flight against Megatron's rules written out, and against schedules walked pass by pass."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mla_cost.declared.schedules import SCHEDULES
from mla_cost.language.schedule import PassKind, Repeat, Schedule, Turn, unrolled
from mla_cost.mesh.degrees import Parallel
from mla_cost.mesh.schedule import PassInFlight, enough, idle, in_flight, passes, passes_in_order, worst_passes
from tests.mesh.pipelines import pipelines

FORWARD, BACKWARD = PassKind


@given(pipelines())
def test_in_flight_is_megatrons_warm_up_plus_one(parallel: Parallel) -> None:
    p, m, v, g = parallel.pp, parallel.num_micro_batches, parallel.virtual_stages, parallel.group
    for stage in range(p):
        kept = in_flight(parallel, stage)
        warm_up = p - stage - 1 if v == 1 else 2 * (p - stage - 1) + (v - 1) * g
        assert kept == min(m * v, warm_up + 1)
        assert kept <= m * v
        assert stage == 0 or kept <= in_flight(parallel, stage - 1)


@given(pipelines())
def test_the_schedule_does_every_pass_once_forward_first(parallel: Parallel) -> None:
    everything = {(chunk, m) for chunk in range(parallel.virtual_stages) for m in range(parallel.num_micro_batches)}
    for stage in range(parallel.pp):
        open_passes: set[tuple[int, int]] = set()
        done: Counter[tuple[int, int]] = Counter()
        most = 0
        for step in passes_in_order(parallel, stage):
            at = step.chunk, step.micro_batch
            if step.kind is FORWARD:
                open_passes.add(at)
                most = max(most, len(open_passes))
            else:
                open_passes.remove(at)
                done[at] += 1
        assert (set(done), set(done.values()), open_passes) == (everything, {1}, set())
        assert most == in_flight(parallel, stage)


@given(pipelines(), st.lists(st.integers(0, 9), min_size=4, max_size=4))
def test_the_worst_passes_hold_the_worst_of_the_whole_schedule(parallel: Parallel, bytes_of: list[int]) -> None:
    """Whatever each chunk keeps: a few rounds, and of them the ends of runs, are enough."""

    def kept(at: PassInFlight) -> int:
        return sum(map(int.__mul__, at.beside, bytes_of))

    longer = parallel._replace(num_micro_batches=parallel.num_micro_batches + 12 * parallel.group)
    for stage in range(parallel.pp):
        whole, worst = set(passes(longer, stage)), worst_passes(longer, stage)
        assert whole.issuperset(worst)
        assert not any(covers(other, at) for other in worst for at in worst if other != at)
        for way, chunk in {at[:2] for at in whole}:
            of_all, of_few = (max(kept(at) for at in some if at[:2] == (way, chunk)) for some in (whole, worst))
            assert of_all == of_few


def test_a_million_micro_batches_in_one_group_are_followed_by_their_runs() -> None:
    """Stage 0 of 3, 3 chunks, one group: every micro-batch goes through chunk 0, then chunk 1, 4 into chunk 2, by hand.

    Then chunk 2 goes forward and back by turns until all are through it.
    """
    m = 10**6
    found = worst_passes(Parallel(pp=3, virtual_stages=3, num_micro_batches=m, group_size=m), 0)
    assert [at for at in found if at.kind is FORWARD] == [
        PassInFlight(FORWARD, 0, (m - 1, 0, 0)),
        PassInFlight(FORWARD, 1, (m, m - 1, 0)),
        PassInFlight(FORWARD, 2, (m, m, 4)),
    ]
    assert [at for at in found if at.kind is BACKWARD] == [
        PassInFlight(BACKWARD, 2, (m, m, 4)),
        PassInFlight(BACKWARD, 1, (m, m - 1, 0)),
        PassInFlight(BACKWARD, 0, (m - 1, 0, 0)),
    ]


def covers(other: PassInFlight, at: PassInFlight) -> bool:
    same = other[:2] == at[:2]
    return same and all(map(int.__ge__, other.beside, at.beside))


def test_interleaved_passes_of_the_last_of_two_stages() -> None:
    """Typed from the schedule of two micro-batches: chunk 0 never goes back while chunk 1 keeps anything."""
    two = Parallel(pp=2, virtual_stages=2, num_micro_batches=2)
    assert [tuple(at) for at in passes(two, 1)] == [
        (FORWARD, 0, (0, 0)),
        (FORWARD, 0, (1, 0)),
        (FORWARD, 1, (2, 0)),
        (BACKWARD, 1, (2, 0)),
        (FORWARD, 1, (2, 0)),
        (BACKWARD, 1, (2, 0)),
        (BACKWARD, 0, (1, 0)),
        (BACKWARD, 0, (0, 0)),
    ]


# ---- any schedule, against one that is walked pass by pass


def walked(orders: list[tuple[PassKind, int]], chunks: int, bytes_of: list[int]) -> dict[tuple[PassKind, int], int]:
    """The most kept beside each kind of pass of each chunk, counted pass by pass."""
    kept = [0] * chunks
    most: dict[tuple[PassKind, int], int] = {}
    for kind, chunk in orders:
        kept[chunk] -= kind is BACKWARD
        beside = sum(count * size for count, size in zip(kept, bytes_of, strict=True))
        most[kind, chunk] = max(most.get((kind, chunk), beside), beside)
        kept[chunk] += kind is FORWARD
    return most


def turns(chunks: int) -> st.SearchStrategy[Turn | Repeat]:
    """Words of any passes, each forward perhaps far from its backward, with repeats in repeats."""
    one = st.builds(Turn, st.sampled_from(PassKind), st.integers(0, chunks - 1))
    return st.recursive(
        one, lambda each: st.builds(Repeat, st.integers(0, 6), st.lists(each, max_size=4).map(tuple)), max_leaves=12
    )


@given(st.lists(turns(3), min_size=1, max_size=6), st.lists(st.integers(0, 9), min_size=3, max_size=3))
def test_ends_of_repeats_hold_the_worst_of_any_word(word: list[Turn | Repeat], bytes_of: list[int]) -> None:
    """Counts may fall below 0 here: it is the arithmetic that is tried, of words that no schedule would be."""
    made_up = Schedule("made up", "", "", lambda *_: word, lambda _: iter(()))
    parallel = Parallel(pp=2, virtual_stages=3, num_micro_batches=3, schedule=made_up)
    found: dict[tuple[PassKind, int], int] = {}
    for at in worst_passes(parallel, 0):
        beside = sum(count * size for count, size in zip(at.beside, bytes_of, strict=True))
        found[at[:2]] = max(found.get(at[:2], beside), beside)
    every = [(turn.kind, turn.chunk) for turn in unrolled(word)]
    assert found == walked(every, 3, bytes_of)


@pytest.mark.parametrize("name", SCHEDULES)
@given(parallel=pipelines(), bytes_of=st.lists(st.integers(0, 9), min_size=4, max_size=4))
def test_every_schedule_is_worst_where_walking_says(name: str, parallel: Parallel, bytes_of: list[int]) -> None:
    parallel = parallel._replace(schedule=SCHEDULES[name], group_size=parallel.group_size if name != "gpipe" else None)
    chunks = parallel.chunks
    for stage in range(parallel.pp):
        every = [step[:2] for step in passes_in_order(parallel, stage)]
        found: dict[tuple[PassKind, int], int] = {}
        for at in worst_passes(parallel, stage):
            beside = sum(count * size for count, size in zip(at.beside, bytes_of, strict=False))
            found[at[:2]] = max(found.get(at[:2], beside), beside)
        assert found == walked(every, chunks, bytes_of[:chunks])


def test_gpipe_keeps_every_micro_batch_of_a_step() -> None:
    for m in (1, 5, 10**6):
        parallel = Parallel(pp=3, num_micro_batches=m, schedule=SCHEDULES["gpipe"])
        for stage in range(3):
            assert in_flight(parallel, stage) == m
            assert worst_passes(parallel, stage) == tuple(PassInFlight(kind, 0, (m - 1,)) for kind in PassKind)
        assert idle(parallel) == (4, 2 * m + 4)


@given(pipelines())
def test_what_a_schedule_does_not_tell_apart_is_the_same(parallel: Parallel) -> None:
    for stage in range(parallel.pp):
        assert worst_passes(enough(parallel), stage) == worst_passes(parallel, stage)


@given(pipelines())
def test_stages_wait_as_long_as_the_way_there_and_back(parallel: Parallel) -> None:
    """The usual bubble, (p - 1) / (v m + p - 1) of the slots, is what the walked table has (tests/declared)."""
    waits, taken = idle(parallel)
    p, m, v = parallel.pp, parallel.num_micro_batches, parallel.chunks
    assert waits * (v * m + p - 1) == taken * (p - 1)
