"""What is priced when nothing is said, at both scopes, and that the help says it."""

from __future__ import annotations

from typing import Any

import pytest

import mla_cost
from mla_cost.cli import main

MODEL: dict[str, Any] = {"model": "deepseek-v2-lite", "device": "h100-80gb", "form": "explicit", "seq_len": 4096}


def ranks(text: str) -> str:
    return next(line for line in text.splitlines() if " ranks: " in line).split(" ranks")[0]


def test_a_whole_model_has_no_degree_that_nobody_named(capsys, tmp_path):
    """ep 8 on dp 8 are 8 ranks, not 64."""
    plan = mla_cost.plan(**MODEL, ep=8, dp=8)
    assert (plan.inputs["sp"], plan.inputs["kernel"], ranks(repr(plan))) == (1, "auto", "8")
    file = tmp_path / "mine.yaml"
    file.write_text("model: deepseek-v2-lite\ndevice: h100-80gb\nform: explicit\nep: 8\ndp: 8\n", encoding="utf-8")
    with pytest.raises(SystemExit):
        main(["plan", str(file)])
    assert ranks(capsys.readouterr().out) == "8"


def test_what_is_said_stays():
    plan = mla_cost.plan(**MODEL, ep=8, dp=8, sp=8, kernel="eager")
    assert (plan.inputs["sp"], plan.inputs["kernel"], ranks(repr(plan))) == (8, "eager", "64")


def test_a_block_is_shared_by_8_ranks():
    plan = mla_cost.plan(**MODEL, scope="attention")
    assert (plan.inputs["sp"], plan.inputs["kernel"]) == (8, "eager")


def test_the_longest_and_a_sweep_have_the_same_defaults():
    assert mla_cost.longest(**MODEL, ep=8, dp=8).inputs["sp"] == 1
    swept = mla_cost.sweep(**MODEL, scope="model", ep=8, over={"dp": [8]})
    (planned,) = mla_cost.plan(**MODEL, ep=8, dp=8).results
    assert swept[0]["required_bytes"] == planned.memory.allocated_peak_bytes


@pytest.mark.parametrize("command", ["plan", "fit"])
def test_the_help_says_the_defaults(command, capsys):
    with pytest.raises(SystemExit):
        main([command, "--help"])
    told = " ".join(capsys.readouterr().out.split())
    for said in (
        "config.json; deepseek-v3 by default.",
        "910b-64gb and a100-80gb by default.",
        "16,384 by default.",
        "Ranks that share one sequence; 1 by default, 8 at scope attention.",
        "Micro-batches of a step; 1 by default.",
        "by default auto, the one that trains, at scope attention eager.",
    ):
        assert said in told
