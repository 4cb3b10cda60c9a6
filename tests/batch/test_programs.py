"""Programs as matrices: one timeline serves an input that is held and one that is not, one course all sizes."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from mla_cost.batch.array_layers import ArrayLayer, most
from mla_cost.batch.matrices import monomials_of, over_others, rows_of
from mla_cost.batch.programs import compiled_account, held
from mla_cost.declared.forms import FORMS
from mla_cost.declared.kernels import KERNELS
from mla_cost.inputs import catalog
from mla_cost.inputs.settings import PlanSettings
from mla_cost.language.dims import OTHERS, QUOTIENTS, follow
from mla_cost.language.evaluate import account_of, course
from mla_cost.language.program import ProgramError
from mla_cost.language.workspace import kinds_of
from mla_cost.pricing.block import ALONE
from mla_cost.pricing.compile import timeline
from mla_cost.pricing.key import Key
from mla_cost.pricing.resolve import resolve
from mla_cost.pricing.stage import chunk_parts

SETTINGS: list[dict[str, Any]] = [
    {"sp": 1},
    {"sp": 4},
    {"sp": 4, "remat": "full"},
    {"sp": 4, "names": "held"},
    {"sp": 128, "micro_batch": 2},
]


def keys() -> list[Key]:
    found = []
    for form, kernel, settings in itertools.product(FORMS, KERNELS, SETTINGS):
        asked = PlanSettings(kernel=kernel, scope="attention", **settings)
        key = resolve(catalog.model("deepseek-v3"), form, asked).key
        try:
            timeline(key)
        except ProgramError:
            continue
        found.append(key)
    return found


@pytest.mark.parametrize("view", ["seen", "allocated", "accumulated"])
def test_a_held_input_is_one_that_is_not_freed(view):
    """Both timelines make the same steps but for one: the input goes, or stays."""
    for key in keys():
        both = account_of(timeline(key)), compiled_account(key)
        own, other = getattr(both[0], view), held(getattr(both[1], view), both[1])
        steps = [
            [(account.polynomials[size], sign) for size, sign in zip(tape.sizes, tape.signs, strict=True)]
            for account, tape in zip(both, (own, other), strict=True)
        ]
        assert steps[0] == steps[1], key
        assert own.forward == other.forward


def test_a_course_is_the_same_over_numbers_and_over_rows():
    """The largest row of coefficients, put in, is the largest number; and no step between the tops is larger."""
    draw = np.random.default_rng(3)
    kinds = kinds_of("cuda")
    for key in keys()[:8]:
        account = account_of(timeline(key))
        each = [over_others(size) for size in account.polynomials]
        monomials = monomials_of(each)
        values = {name: int(draw.integers(1, 9)) for name in {name for monomial in monomials for name in monomial}}
        numbers = [size.at(values) for size in each]
        at = np.array([np.prod([values[name] for name in monomial] or [1]) for monomial in monomials])
        reported = course(account, account.allocated, numbers, kinds)
        rows = course(account, account.allocated, [*rows_of(each, monomials)], kinds)
        for ours, theirs in zip(reported.phases(), rows.phases(), strict=True):
            assert ours == [row @ at for row in theirs]
        assert max(map(max, reported.phases())) == max(*reported.live, *(live for _, live in reported.works), 0)
        assert rows.after_forward @ at == reported.after_forward


def test_what_follows_is_the_same_for_numbers_and_arrays():
    numbers = {"S": 4096, "P": 8, "t": 2, "n": 64, "r": 65, "E": 1, "T": 3, "A": 4}
    found = follow(numbers, (*QUOTIENTS, *OTHERS))
    assert found == {
        "s": 512,
        "u": 256,
        "l": 8,
        "r_half": 32,
        "s_half": 256,
        "C": 2,
        "l_in": 16,
        "P_others": 7,
        "C_others": 1,
        "A_others": 3,
        "other_tp_ranks": 1,
        "other_expert_ranks": 0,
        "other_etp_ranks": 2,
    }
    for dtype in (np.int64, np.float64):
        arrays = follow({name: np.full(3, value, dtype) for name, value in numbers.items()}, (*QUOTIENTS, *OTHERS))
        assert {name: column.tolist() for name, column in arrays.items()} == {
            name: [value] * 3 for name, value in found.items()
        }


def test_blocks_in_a_row_have_their_peak_at_an_end():
    """Typed out: the first block alone, the first with all other gradients, the last on what the others keep."""

    def peak(kept: Any, gradients: Any, backward: Any) -> Any:
        blocks: Any = [ArrayLayer(kept, 50, backward, gradients), ArrayLayer(kept, 30, 20, gradients, num_layers=4)]
        _, ahead, back = chunk_parts(ALONE, blocks, gradients_stay=True)
        return most((*ahead, *back))

    assert peak(1, 2, 40) == 50
    assert peak(1, 2, 45) == 45 + 4 * 2
    assert peak(10, 2, 45) == 4 * 10 + 30
    assert peak(np.array([1, 1, 10]), 2, np.array([40.0, 45.0, 45.0])).tolist() == [50, 53, 70]
