"""A rule on one number and on an array of numbers: the same answers, ints that stay ints."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mla_cost.inputs.config import ReserveItem
from mla_cost.language import numbers
from mla_cost.language.program import Requirement
from mla_cost.pricing.usable import STATUSES, status

SIZES = st.integers(0, 2**52)
PARTS = st.integers(1, 2**20)


@given(number=SIZES, by=PARTS)
def test_divisions_agree_on_ints_doubles_and_int64(number, by):
    for name in ("floor_divide", "ceil_divide", "round_up", "remainder"):
        function = getattr(numbers, name)
        wanted = {
            "floor_divide": number // by,
            "ceil_divide": -(-number // by),
            "round_up": -(-number // by) * by,
            "remainder": number % by,
        }[name]
        assert function(number, by) == wanted
        assert type(function(number, by)) is int
        for kind in (np.int64, np.float64):
            assert int(function(np.array([number, number], kind), by)[1]) == wanted
            assert int(function(np.array([number], kind), np.array([by], kind))[0]) == wanted


@given(first=SIZES, second=SIZES)
def test_choices_agree(first, second):
    of_arrays = np.array([first]), np.array([second])
    assert numbers.maximum(first, second) == max(first, second) == numbers.maximum(*of_arrays)[0]
    assert numbers.minimum(first, second) == min(first, second) == numbers.minimum(*of_arrays)[0]
    assert numbers.where(first > second, 1, 2) == numbers.where(of_arrays[0] > of_arrays[1], 1, 2)[0]
    assert numbers.how_many(first > 5, second > 5) == numbers.how_many(of_arrays[0] > 5, of_arrays[1] > 5)[0]


@pytest.mark.parametrize("kind", [np.int64, np.float64])
@pytest.mark.parametrize("size", [1, 2, 40])
def test_any_function_of_whole_numbers_is_asked_number_by_number(kind, size):
    functions = (
        lambda rows, heads: rows * heads + 1,
        lambda rows, heads: rows if rows > 7 else heads,
        lambda rows, heads: max(rows, heads, 3),
        lambda rows, heads: 1 << (rows + heads).bit_length(),
        lambda rows, heads: {4: 1}.get(rows, 2) * heads,
        lambda rows, heads: 5,  # noqa: ARG005
    )
    rows, heads = np.arange(size, dtype=kind) % 9, np.arange(size, dtype=kind)[::-1] % 4
    for function in functions:
        wanted = [function(int(a), int(b)) for a, b in zip(rows, heads, strict=True)]
        assert np.broadcast_to(numbers.at_each(function, rows, heads), size).tolist() == wanted
        assert numbers.at_each(function, int(rows[-1]), heads[-1]) == wanted[-1]


def test_a_requirement_on_numbers_and_on_arrays():
    twice = Requirement("divides", "seq_len", "sp", "", times=2)
    most = Requirement("at_most", "sp", "heads", "")
    lengths, ranks, heads = np.array([4096.0, 4096, 100, 101]), np.array([8.0, 1, 8, 1]), np.array([8.0, 8, 8, 0])
    sizes = {"seq_len": lengths, "sp": ranks, "heads": heads}
    assert twice.broken(sizes).tolist() == [False, False, True, False]
    assert most.broken(sizes).tolist() == [False, False, False, True]
    for at in range(4):
        own = {name: int(column[at]) for name, column in sizes.items()}
        assert twice.broken(own) is bool(twice.broken(sizes)[at])
        assert most.broken(own) is bool(most.broken(sizes)[at])


def test_a_status_on_numbers_and_on_arrays():
    """Usable 1000: tight below 50 left; what no kernel trains is unsupported however much is left."""
    usable, headroom = 1000, [1000, 50, 49, 0, -1]
    wanted = ["fits", "fits", "tight", "tight", "oom"]
    assert [STATUSES[status(each, usable, True)] for each in headroom] == wanted
    assert [STATUSES[code] for code in status(np.array(headroom), np.full(5, usable), True)] == wanted
    trained = np.array([False, True, True, True, False])
    found = [STATUSES[code] for code in status(np.array(headroom), np.full(5, usable), trained)]
    assert found == ["unsupported", "fits", "tight", "tight", "unsupported"]


def test_a_communicator_on_numbers_and_on_arrays():
    item = ReserveItem(
        name="buffers", bytes=9, per="communicator", verified=True, source="x", by_group_size={2: 3, 8: 5}
    )
    assert [item.bytes_for(ranks) for ranks in (1, 2, 3, 8, 9)] == [0, 3, 5, 5, 9]
    assert item.bytes_for(np.array([1, 2, 3, 8, 9])).tolist() == [0, 3, 5, 5, 9]


def test_ints_need_no_numpy():
    code = (
        "import sys; from mla_cost.language import numbers; numbers.round_up(5, 4); assert 'numpy' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)  # our own code
