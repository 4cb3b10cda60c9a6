"""A stage that is asked for: its row among the others, its name in the levers, and the plan's own verdict beside it."""

from __future__ import annotations

from typing import Any

import pytest

import mla_cost
from mla_cost import InputError
from mla_cost.cli import main
from mla_cost.inputs.settings import PlanSettings
from mla_cost.pricing.whole_model import with_rank

PLAN = ("plan", "deepseek-v3-2048-h800", "--form", "explicit")  # oom on stage 1; stages 11 to 15 fit


def printed(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> str:
    with pytest.raises(SystemExit) as ended:
        main([*PLAN, *words])
    assert ended.value.code == code
    return " ".join(capsys.readouterr().out.split())


def test_its_row_and_its_moment_are_shown(capsys):
    text = printed(capsys, "--stage", "3")
    assert " 3 4 13 " in text  # 4 layers; of 16 stages in one chunk each, 16 - 3 micro-batches in flight
    assert "on stage 1 Peak event of stage 3: backward of mixed (moe)" in text
    assert "Peak event of" not in printed(capsys)


def test_levers_say_whose_memory_it_is(capsys):
    text = printed(capsys, "--stage", "12", "--levers")
    assert "required memory on stage 12" in text
    assert "kernel flash, stage 12: fits" in text
    assert "required memory on the worst stage" in printed(capsys, "--levers")


def test_a_stage_that_fits_does_not_make_the_plan_fit(capsys):
    """Peak 162.03 GiB on stage 1, of 73.86 usable; 34.91 on stage 14."""
    text = printed(capsys, "--stage", "14", "--require-fit", code=1)
    assert "fits, 38.9 GiB left; the plan does not fit: stage 1 88.2 GiB short" in text
    printed(capsys, "--stage", "1", "--require-fit", code=1)
    printed(capsys, "--stage", "14", "--remat", "full", "--require-fit")


def test_a_stage_of_a_plan_that_fits_says_no_more():
    degrees: Any = {"pp": 3, "sp": 1, "ep": 8, "dp": 8, "stage": 2}
    asked: Any = {
        "model": "deepseek-v2-lite",
        "device": "h100-80gb",
        "form": "explicit",
        "seq_len": 4096,
        "kernel": "flash",
    }
    (row,) = mla_cost.plan(**asked, **degrees).results
    assert row.verdict is not None
    assert row.verdict.status == "fits"
    assert "the plan does not fit" not in row.verdict.reason


@pytest.mark.parametrize(("rank", "stage"), [("last", 3), ("worst", None), ("0", 0), ("7", 1), ("15", 3)])
def test_a_rank_selects_its_stage(rank: str, stage: int | None) -> None:
    """16 ranks over 4 stages, stages outermost: ranks 4 to 7 are the second."""
    settings = PlanSettings(scope="model", pp=4, tp=2, sp=1, dp=2)
    assert with_rank(settings, rank).stage == stage
    unsaid = PlanSettings(scope="model", pp=4, tp=2, dp=2)  # sp is 1 at this scope where nothing is said
    assert with_rank(unsaid, rank).stage == stage


@pytest.mark.parametrize(("rank", "stage"), [("16", None), ("first", None), ("last", 1)])
def test_no_such_rank(rank: str, stage: int | None) -> None:
    with pytest.raises(InputError, match=r"no such rank|a stage is stated too"):
        with_rank(PlanSettings(scope="model", pp=4, tp=2, sp=1, dp=2, stage=stage), rank)
