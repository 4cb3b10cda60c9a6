"""Ceilings fitted to steps: what was put in comes out, and what the steps leave open is said."""

from __future__ import annotations

import json
from typing import Any

import pytest

import mla_cost
from mla_cost.cli import main
from mla_cost.errors import InputError
from mla_cost.studies.calibration import TERMS, fitted, read

pytest.importorskip("scipy")


def steps(*rows):
    """Seconds of terms by their first word, the others none."""
    return [dict.fromkeys(TERMS, 0.0) | row for row in rows]


def test_factors_that_were_put_in_come_out():
    shares = steps(
        {"products": 1.0, "exchanges": 1.0}, {"products": 3.0, "exchanges": 1.0}, {"products": 1.0, "exchanges": 4.0}
    )
    terms, apart, absent = fitted(shares, [1.2 + 0.5, 3.6 + 0.5, 1.2 + 2.0])
    assert {term.name: round(term.factor, 4) for term in terms} == {"products": 1.2, "exchanges": 0.5}
    assert apart == ()
    assert "fused attention" in absent


def test_terms_that_always_go_together_are_named_and_share_what_is_found():
    shares = steps({"products": 1.0, "memory": 1.0}, {"products": 2.0, "memory": 2.0})
    terms, apart, _ = fitted(shares, [3.0, 6.0])
    assert apart == (("products", "memory"),)
    assert [round(term.factor, 4) for term in terms] == [1.5, 1.5]


def test_steps_that_no_device_takes_are_refused():
    shares = steps({"products": 1.0}, {"products": 1.0})
    with pytest.raises(InputError, match="no device does"):
        fitted(shares, [100.0, 100.0])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("seq_length,seconds\n4096,1\n", "did you mean seq_len"),
        ("seq_len\n4096\n", "no column of measured times"),
        ("seq_len,seconds\n4096,-1\n", "is no time"),
        ("seq_len,seconds\n", "0 steps"),
    ],
)
def test_what_is_wrong_with_a_file_is_said(tmp_path, text, said):
    path = tmp_path / "steps.csv"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=said):
        read(path)


def test_the_command_scales_a_device_that_plan_takes(tmp_path, capsys):
    steps_file, saved = tmp_path / "steps.csv", tmp_path / "mine.yaml"
    common: dict[str, Any] = {"model": "deepseek-v2-lite", "ep": 8, "dp": 8}
    lines = ["model,ep,dp,micro_batches,seq_len,seconds"]
    for micro_batches, seq_len in ((1, 4096), (2, 4096), (1, 8192)):
        asked = common | {"micro_batches": micro_batches, "seq_len": seq_len}
        time = mla_cost.plan(device="h100-80gb", form="explicit", **asked).results[0].time
        assert time is not None
        lines.append(",".join(map(str, [*asked.values(), 1.3 * time.total.seconds])))
    steps_file.write_text("\n".join(lines), encoding="utf-8")
    with pytest.raises(SystemExit) as ended:
        main(["calibrate", str(steps_file), "--device", "h100-80gb", "--save", str(saved), "--format", "json"])
    assert ended.value.code == 0
    found = json.loads(capsys.readouterr().out)
    assert found["before"]["median"] == pytest.approx(1 - 1 / 1.3)
    assert found["after"]["worst"] < 0.03
    assert found["not_told_apart"]
    assert mla_cost.plan(device=str(saved), form="explicit", model="deepseek-v2-lite").results[0].time is not None
