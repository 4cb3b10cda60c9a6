"""Two plans side by side: what differs is named, and the parts add up to the totals, exactly."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import mla_cost
from mla_cost.cli import main
from mla_cost.errors import InputError
from mla_cost.studies.diff import Diff, diff

LAUNCH = Path(__file__).parents[1] / "fixtures" / "launch"


def total(found: Diff, name: str) -> int:
    (one,) = (each for each in found.totals if each.name == name)
    return int(one.second) - int(one.first)


def adds_up(found: Diff) -> None:
    assert sum(part.delta for part in found.memory) == total(found, "memory.allocated_peak_bytes")
    assert sum(part.delta for part in found.sent) == total(found, "sent_bytes")


def written(path: Path, **settings: Any) -> str:
    path.write_text("".join(f"{name}: {json.dumps(value)}\n" for name, value in settings.items()))
    return str(path)


def test_what_a_setting_changes_is_named_and_adds_up(tmp_path: Path) -> None:
    asked: Any = {
        "model": "deepseek-v2-lite",
        "device": "a100-80gb",
        "seq_len": 4096,
        "ep": 8,
        "dp": 8,
        "form": "explicit",
    }
    first = written(tmp_path / "a.yaml", **asked)
    second = written(tmp_path / "b.yaml", **asked, remat="full", moment_dtype="bf16")
    found = diff(first, second)
    assert [(each.name, each.first, each.second) for each in found.settings] == [
        ("remat", "none", "full"), ("moment_dtype", "fp32", "bf16"),
    ]  # fmt: skip
    adds_up(found)
    moments = sum(part.delta for part in found.memory if part.name.startswith("moments"))
    one = mla_cost.plan(**asked).results[0].memory
    other = mla_cost.plan(**asked, moment_dtype="bf16").results[0].memory
    assert one.optimizer_bytes is not None
    assert other.optimizer_bytes is not None
    assert moments == other.optimizer_bytes - one.optimizer_bytes


def test_a_block_in_two_forms_and_a_ready_plan_against_a_script() -> None:
    adds_up(diff("deepseek-v3-2048-h800", str(LAUNCH / "mindspeed.sh")))


def test_the_same_is_the_same_and_a_recorded_result_is_taken_as_it_is(tmp_path: Path, capsys: Any) -> None:
    plan = "moonlight-8-h100"
    found = diff(plan, plan, "explicit")
    assert (found.settings, found.memory, found.sent) == ((), (), ())
    with pytest.raises(SystemExit):
        main(["plan", plan, "--form", "explicit", "--format", "json"])
    result = tmp_path / "result.json"
    result.write_text(capsys.readouterr().out)
    recorded = diff(str(result), plan, "explicit")
    assert recorded.settings == ()
    assert total(recorded, "memory.allocated_peak_bytes") == total(recorded, "sent_bytes") == 0
    adds_up(recorded)
    with pytest.raises(SystemExit) as ended:
        main(["diff", str(result), plan, "--form", "explicit"])
    assert ended.value.code == 0
    assert "No setting differs." in capsys.readouterr().out


def test_what_is_no_plan_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="unknown plan 'moonligt-8-h100'"):
        diff("moonligt-8-h100", "moonlight-8-h100")
    broken = tmp_path / "result.json"
    broken.write_text(json.dumps({"schema": "mla-cost/plan/1", "inputs": {}, "results": [{"form": "laga"}]}))
    with pytest.raises(InputError, match="not what `mla-cost plan --format json` prints"):
        diff(str(broken), "moonlight-8-h100")
