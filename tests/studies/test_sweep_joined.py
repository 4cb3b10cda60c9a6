"""Sweeps whose fields go together: zipped lists, and numbers that follow from others."""

from __future__ import annotations

import csv
import io
from typing import Any

import pytest

import mla_cost
from mla_cost.cli import main
from mla_cost.studies.sweep import sweep
from mla_cost.studies.sweep.expressions import expression

MODEL: dict[str, Any] = {"model": "deepseek-v2-lite", "device": "h100-80gb", "form": "laga", "scope": "model"}
BLOCK: dict[str, Any] = {"model": "deepseek-v2-lite", "device": "h100-80gb", "form": "laga", "scope": "attention"}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("64/(tp*sp)", 16),
        ("64 // 3 + tp % 2", 21),
        ("-(tp-sp)*8 + 16", 16),
        ("7/tp", None),
        ("1/(tp-sp)", None),
        ("tp/4*2", 1),
    ],
)
def test_an_expression_is_exact(text, value):
    """At tp 2 and sp 2."""
    found = expression("dp", text)
    assert found is not None
    assert set(found.names) <= {"tp", "sp"}
    assert found.at({"tp": 2, "sp": 2}) == value


@pytest.mark.parametrize("text", ["1,2", "4096..8192*2", "8", "tp", "8k", "", "bf16", 7, "a b", "(" * 500])
def test_values_are_no_expression(text):
    assert expression("sp", text) is None


@pytest.mark.parametrize(
    "text",
    [
        "tp**9",
        "__import__('os').system('true') + tp",
        "tp.real + 1",
        "tp if sp else 1",
        "tp @ sp",
        "tp + 'a'",
        "(lambda: tp)() + 1",
        "tp << 60",
        "tp + 1.5",
        "tp + True",
        "+".join(["tp"] * 60),
    ],
)
def test_nothing_else_of_python_is_read(text):
    """Whole numbers, names of fields, + - * / // % and parentheses: whatever else is refused, and nothing runs."""
    with pytest.raises(mla_cost.InputError):
        sweep(**MODEL, over={"tp": [1], "dp": text})


def test_what_follows_is_priced_as_a_plan_prices_it():
    """dp = 16/(tp sp): of 3 x 3 combinations those of tp 3 are no plan, and 16/(4 x 8) is no whole number."""
    study = sweep(
        **MODEL,
        seq_len=4096,
        ep=2,
        over={"tp": [1, 3, 4], "sp": [1, 2, 8], "dp": "16/(tp*sp)", "remat": ["none", "full"]},
    )
    rows = [study[at] for at in range(len(study))]
    assert {(row["tp"], row["sp"], row["dp"], row["ranks"]) for row in rows} == {
        (1, 1, 16, 16), (1, 2, 8, 16), (1, 8, 2, 16), (4, 1, 4, 16), (4, 2, 2, 16)
    }  # fmt: skip
    assert study.left_out.startswith("4 of 9 combinations are left out: dp = 16/(tp*sp)")
    assert len(rows) == 10
    for at in (1, 6):
        (planned,) = study.plan(at).results
        assert planned.verdict is not None
        assert planned.verdict.required_bytes == rows[at]["required_bytes"]
    assert study.to_numpy(workers=1)["required_bytes"].tolist() == [row["required_bytes"] for row in rows]


def test_lists_go_side_by_side_in_blocks_too():
    study = sweep(**BLOCK, over={"micro_batch": [1, 2]}, together={"sp": [1, 2, 4], "seq_len": [1024, 2048, 4096]})
    rows = [(row["sp"], row["seq_len"], row["micro_batch"], row["ranks"]) for row in map(study.row, range(len(study)))]
    assert sorted(rows) == sorted((sp, 1024 * sp, b, sp) for sp in (1, 2, 4) for b in (1, 2))
    (planned,) = study.plan(3).results
    assert planned.memory.allocated_peak_bytes == study[3]["allocated_peak_bytes"]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("--zip sp=1,2 dp=1", "lists of one length go side by side, not sp 2, dp 1"),
        ("--zip sp=1,2", "two fields or more"),
        ("--zip sp=1,2 remat=none,full", "is no number here"),
        ("--zip sp=1,2 dp=2,1 --over dp=1,2", "zipped and gone over as well"),
        ("--over tp=2*dp --over dp=tp+1", "go in a circle"),
        ("--over tp=1 --over dp=8/tpp", "knows no such number"),
        ("--over tp=1,2 --over dp=1/(tp+9)", "no whole number above zero for any combination"),
        ("--over tp=1..4000 --over sp=1..4000 --over dp=tp*sp", "at most 1,000,000"),
    ],
)
def test_bad_joints_are_told(capsys, line, words):
    with pytest.raises(SystemExit) as ended:
        main(["sweep", "moonlight-8-h100", "--form", "laga", *line.split()])
    assert ended.value.code == 2
    assert words in capsys.readouterr().err


def test_the_command_line_takes_words_behind_zip(capsys):
    line = "sweep moonlight-8-h100 --form laga --zip sp=1,2,4 dp=8,4,2 --over remat=full --format csv"
    with pytest.raises(SystemExit) as ended:
        main(line.split())
    out, err = capsys.readouterr()
    assert ended.value.code == 0, err
    rows = list(csv.DictReader(io.StringIO(out)))
    assert [(row["sp"], row["dp"], row["ranks"]) for row in rows] == [("1", "8", "8"), ("2", "4", "8"), ("4", "2", "8")]
