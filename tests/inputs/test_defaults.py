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
    assert (plan.inputs["sp"], plan.inputs["kernel"], plan.inputs["sp_default"]) == (8, "auto", "")


@pytest.mark.parametrize(
    ("heads", "seq_len", "sp"), [(128, 16384, 8), (20, 16384, 4), (20, 16380, 5), (7, 49, 7), (128, 5001, 1)]
)
def test_the_ranks_of_a_block_follow_its_heads_and_its_sequence(heads, seq_len, sp):
    """By plan, sweeps of one and of many lengths and models, and fit; the heading says where they are fewer than 8."""
    asked: dict[str, Any] = {"scope": "attention", "device": "a100-80gb", "form": "explicit", "dims": {"heads": heads}}
    plan = mla_cost.plan(**asked, seq_len=seq_len)
    (row,) = plan.results
    said = f"the largest up to 8 that divides {heads} heads and {seq_len:,} tokens"
    assert (plan.inputs["sp"], plan.inputs["sp_default"]) == (sp, "" if sp == 8 else said)
    assert (said in " ".join(repr(plan).split())) == (sp < 8)
    assert mla_cost.longest(**asked, seq_len=seq_len).inputs["sp"] == sp
    alone = mla_cost.sweep(**asked, over={"seq_len": [seq_len]})[0]
    among = mla_cost.sweep(
        scope="attention",
        device="a100-80gb",
        form="explicit",
        over={"seq_len": [4096, seq_len], "dims.heads": [heads, 6]},
    )
    same = next(each for each in map(among.row, range(4)) if each["seq_len"] == seq_len and each["dims.heads"] == heads)
    assert same["sp"] == sp
    assert row.verdict is not None
    for swept in (alone, same):
        assert (swept["kernel"], swept["status"]) == (row.kernel, row.verdict.status)
        assert (swept["saved_bytes"], swept["allocated_peak_bytes"], swept["usable_bytes"]) == (
            row.memory.saved_bytes,
            row.memory.allocated_peak_bytes,
            row.verdict.usable_bytes,
        )


def test_what_is_said_of_a_block_is_refused_where_it_does_not_divide():
    asked: dict[str, Any] = {"scope": "attention", "device": "a100-80gb", "form": "explicit", "dims": {"heads": 20}}
    verdict = mla_cost.plan(**asked, sp=8).results[0].verdict
    assert verdict is not None
    assert verdict.status == "illegal"


@pytest.mark.parametrize("form", ["explicit", "absorbed", "laga"])
def test_eager_stands_beside_the_kernel_that_was_chosen(form):
    asked: dict[str, Any] = {"scope": "attention", "device": ["a100-80gb", "910b-64gb"], "form": form, "seq_len": 8192}
    chosen, eager = mla_cost.plan(**asked), mla_cost.plan(**asked, kernel="eager")
    for row, op_by_op in zip(chosen.results, eager.results, strict=True):
        beside, verdict = row.beside, op_by_op.verdict
        assert row.kernel != "eager"
        assert beside is not None
        assert verdict is not None
        assert beside.kernel == "eager"
        memory = op_by_op.memory
        reported = (beside.saved_bytes, beside.peak_bytes, beside.allocated_peak_bytes, beside.status, beside.reason)
        assert reported == (
            memory.saved_bytes,
            memory.peak_bytes,
            memory.allocated_peak_bytes,
            verdict.status,
            verdict.reason,
        )
        assert op_by_op.beside is None
    assert "Beside it, kernel eager" in repr(chosen)


def test_the_longest_and_a_sweep_have_the_same_defaults():
    assert mla_cost.longest(**MODEL, ep=8, dp=8).inputs["sp"] == 1
    swept = mla_cost.sweep(**MODEL, scope="model", ep=8, over={"dp": [8]})
    (planned,) = mla_cost.plan(**MODEL, ep=8, dp=8).results
    assert swept[0]["required_bytes"] == planned.memory.allocated_peak_bytes


@pytest.mark.parametrize("command", ["plan", "fit"])
def test_the_help_says_the_defaults(command, capsys):
    with pytest.raises(SystemExit):
        main([command, "--help"])
    reported = " ".join(capsys.readouterr().out.split())
    for said in (
        "config.json; deepseek-v3 by default.",
        "910b-64gb and a100-80gb by default.",
        "16,384 by default.",
        "Ranks that share one sequence; 1 by default, at scope attention the largest up to 8 that divides heads and",
        "Micro-batches of a step; 1 by default.",
        "How attention is executed; auto by default: the one that trains the form on the device.",
    ):
        assert said in reported
