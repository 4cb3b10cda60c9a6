"""Steps of many points take what a plan says of each: schedules, overlaps, orders of axes, dispatchers."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

import mla_cost
from mla_cost.batch import price
from mla_cost.batch.composed import require_equal
from mla_cost.inputs.catalog import device, model
from mla_cost.inputs.config import validated
from mla_cost.inputs.settings import PlanSettings
from mla_cost.pricing import rows

SWITCHED = {"tp_overlap": "on", "expert_overlap": "on", "gradient_overlap": "on", "gather_overlap": "on"}
CASES: dict[str, tuple[str, dict[str, Any], dict[str, list[Any]]]] = {
    "1f1b, unequal stages, more micro-batches than are walked": (
        "h800-80gb",
        {"profile": "megatron", "kernel": "flash", "ep": 8, "dp": 64},
        {"pp": [1, 4], "tp": [1, 2], "micro_batches": [4, 70], "gradient_dtype": ["bf16", "fp32"]},
    ),
    "interleaved, a dispatcher that sends once to a node": (
        "h800-80gb",
        {"profile": "megatron", "kernel": "flash", "dispatcher": "deepep", "virtual_stages": 2, "dp": 64, "pp": 4},
        {"ep": [8, 32], "micro_batches": [8, 36], "imbalance_percent": [100, 150]},
    ),
    "all overlaps, another order of axes, a full mesh": (
        "910b-64gb",
        {**SWITCHED, "axis_order": "tp-cp-dp-ep-pp", "kernel": "npu-fusion", "pp": 2, "micro_batches": 4},
        {"sp": [1, 4], "ep": [8, 32], "dp": [32, 64], "sharding": ["zero1", "ddp"]},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_step_takes_what_a_plan_says(name: str) -> None:
    where, stated, axes = CASES[name]
    given = {"scope": "model", "model": "deepseek-v3", "device": (where,), "form": ("explicit",), **stated}
    settings = validated(PlanSettings, given).by_scope()
    points = list(itertools.product(*axes.values()))
    columns = {axis: [point[at] for point in points] for at, axis in enumerate(axes)}
    found = price(model("deepseek-v3"), device(where), "explicit", settings, columns, "all")
    assert (found["seconds"] > 0).all()
    for at in (0, len(points) // 2 - 1, len(points) - 1):
        asked = settings.model_copy(update=dict(zip(axes, points[at], strict=True)))
        (row,) = rows.rows(model("deepseek-v3"), device(where), asked)
        time = row.time
        assert time is not None
        wanted = {
            "seconds": time.total.seconds,
            "tokens_per_second": time.tokens_per_second,
            "model_flops_utilisation": time.model_flops_utilisation,
            "idle_seconds": time.idle,
            "exposed_seconds": sum(time.exposed.values()),
        }
        require_equal(at, found.row(at), wanted)


def test_a_sweep_tells_time_where_a_device_has_ceilings() -> None:
    over = {"tp": [1, 64], "device": ["h100-80gb", "none"]}
    study = mla_cost.sweep("deepseek-v2-lite", form="laga", over=over, ep=8, dp=8, time=True)
    told = [(row["device"], row["status"], row["seconds"] is not None) for row in map(study.row, range(len(study)))]
    assert told == [
        ("h100-80gb", "oom", True),
        ("none", "none", False),
        ("h100-80gb", "illegal", False),
        ("none", "illegal", False),
    ]
    fastest = study.best("-tokens_per_second", where={"device": "h100-80gb"})
    assert fastest is not None
    assert 0 < fastest["model_flops_utilisation"] < 1
    with pytest.raises(mla_cost.InputError, match="scope model"):
        mla_cost.sweep(scope="attention", over={"sp": [1, 2]}, time=True)
