"""Keyword arguments are typed: an editor completes them, and mypy, which runs over this file too, refuses wrong ones.

`warn_unused_ignores` is on, so each ignore below is a complaint that mypy has to make.
"""

from __future__ import annotations

from typing import get_type_hints

import mla_cost
from mla_cost.checks import keywords
from mla_cost.inputs.keywords import PlanKeywords, SearchKeywords
from mla_cost.inputs.settings import PlanSettings
from mla_cost.inputs.table import TABLE


def right() -> int | None:
    """What a user writes."""
    found = mla_cost.plan(
        "deepseek-v3", "h100-80gb", scope="attention", seq_len="128k", sp=8, causal=True, remat="full"
    )
    study = mla_cost.sweep(over={"sp": [1, 2]}, seq_len=4096, form="laga", kernel="flash")
    best = mla_cost.search("deepseek-v3", devices=64, global_batch=8, tp=[1, 2], remat="none,full", max_pp=8, by="sent")
    longest = mla_cost.longest("deepseek-v3", "h100-80gb", tp=2, other_memory="2GiB")
    return found["laga"].memory.saved_bytes if len(study) and best.results and longest.to_dict() else None


def wrong() -> None:
    """What mypy refuses: a name that no setting has, a kind that it cannot be, a word that it does not take."""
    mla_cost.plan("deepseek-v3", seqlen=4096)  # type: ignore[call-arg]
    mla_cost.plan("deepseek-v3", sp="eight")  # type: ignore[arg-type]
    mla_cost.plan("deepseek-v3", dtype="int8")  # type: ignore[arg-type]
    mla_cost.plan("deepseek-v3", causal="yes")  # type: ignore[arg-type]
    mla_cost.sweep(over={"sp": [1]}, tpp=1)  # type: ignore[call-arg]
    mla_cost.search(devices=8, global_batch=8, dp=4)  # type: ignore[call-arg]


def test_the_types_are_not_stale():
    assert keywords.FILE.read_text(encoding="utf-8") == keywords.text(), "run python -m mla_cost.checks.schema"


def test_every_setting_is_typed():
    hints = get_type_hints(PlanKeywords)
    others = {other for row in TABLE.values() for other in row.also}
    assert hints.keys() | keywords.OWN_PARAMETERS == PlanSettings.model_fields.keys() | others
    searched = {row.name for row in TABLE.values() if row.search != "follows"} - keywords.OWN_PARAMETERS - {"scope"}
    assert searched <= get_type_hints(SearchKeywords).keys()
