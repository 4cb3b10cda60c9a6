"""Model flops are the maths' own: their sum over a job does not depend on how the job is divided."""

from __future__ import annotations

from typing import Any

import pytest

import mla_cost

JOB: dict[str, Any] = {
    "model": "deepseek-v3",
    "scope": "model",
    "seq_len": 4096,
    "kernel": "flash",
    "ep": 8,
    "device": (),
}
WAYS: list[dict[str, Any]] = [
    {"tp": 2},
    {"tp": 8},
    {"tp": 8, "down_projections": "sharded"},
    {"tp": 4, "sp": 2},
    {"tp": 4, "etp": 2},
    {"tp": 8, "cross_entropy": "chunked"},
    {"tp": 8, "vocab_multiple": 1000},
    {"tp": 8, "remat": "full"},
]


def flops(ranks: int = 64, **settings: Any) -> tuple[int, int]:
    """Model and executed flops of a step of 64 sequences over a job: of one stage, so every rank runs the same."""
    divided = settings.get("tp", 1) * settings.get("sp", 1)
    given = {**JOB, "dp": ranks // divided, "micro_batches": divided, **settings}
    found = mla_cost.plan(**given).results[0].flops
    model = sum(phase.model or 0 for phase in (found.forward, found.backward))
    return ranks * model, ranks * sum(phase.executed or 0 for phase in (found.forward, found.backward))


@pytest.mark.parametrize("form", ["explicit", "laga"])
@pytest.mark.parametrize("way", WAYS, ids=str)
def test_a_job_has_the_same_model_flops_however_divided(form: str, way: dict[str, Any]) -> None:
    assert flops(form=(form,), **way)[0] == flops(form=(form,))[0]


@pytest.mark.parametrize("way", [{"tp": 8}, {"tp": 4, "sp": 2}], ids=str)
def test_and_so_under_megatron(way: dict[str, Any]) -> None:
    own: dict[str, Any] = {"profile": "megatron", "form": ("explicit",)}
    assert flops(**own, **way)[0] == flops(**own)[0]


def test_what_tp_repeats_and_pads_is_executed() -> None:
    """The down-projections of 61 layers and MTP's one on 7 of 8 ranks too, and 768 padded rows of two heads."""
    eight, one = flops(tp=8, form=("explicit",)), flops(form=("explicit",))
    positions, products = 4096, 2 * 3
    down = 62 * 7168 * (1536 + 512 + 64) * (8 - 1)
    padded = 2 * 7168 * (130_048 - 129_280)
    assert eight[0] == one[0]
    assert eight[1] - one[1] == 64 * positions * products * (down + padded)
