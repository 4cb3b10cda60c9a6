"""Every row of a sweep, of a search and of fit is a command line, and `.plan()` in Python: the same figures."""

from __future__ import annotations

import json
import shlex
from typing import Any

import pytest

import mla_cost
from mla_cost.cli import main
from mla_cost.inputs.command import command_of, settings_of

BLOCK: Any = {
    "scope": "attention", "over": {"dims.heads": [64, 128], "sp": [1, 8], "device": ["a100-80gb", "none"]},
}  # fmt: skip
MODEL: Any = {
    "model": "moonlight-16b-a3b", "form": "all", "device": "h100-80gb", "dp": 8, "seq_len": 4096,
    "over": {"ep": [1, 8], "remat": ["none", "full"]},
}  # fmt: skip


def printed(command: str, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    with pytest.raises(SystemExit):
        main([*shlex.split(command)[1:], "--format", "json"])
    (row,) = json.loads(capsys.readouterr().out)["results"]
    assert isinstance(row, dict)
    return row


@pytest.mark.parametrize("asked", [BLOCK, MODEL], ids=["block", "model"])
def test_every_row_of_a_sweep_replays(asked: Any, capsys: pytest.CaptureFixture[str]) -> None:
    found = mla_cost.sweep(**asked)
    for index in range(len(found)):
        row, command = found[index], found.command(index)
        assert command_of(settings_of(command)) == command
        (planned,) = found.plan(index).results
        told = printed(command, capsys)
        assert told["memory"]["allocated_peak_bytes"] == planned.memory.allocated_peak_bytes
        assert planned.form == row["form"]
        if planned.verdict is None:
            assert row["status"] == "none"
            continue
        assert (planned.verdict.status, planned.verdict.headroom_bytes) == (row["status"], row["headroom_bytes"])
        assert told["verdict"]["status"] == row["status"]


def test_rows_of_search_and_fit_plan_themselves() -> None:
    asked: Any = {"seq_len": 4096, "form": "explicit", "pp": [1, 2], "sp": 1, "tp": 1, "remat": ["none", "full"]}
    found = mla_cost.search("moonlight-16b-a3b", "h100-80gb", devices=16, global_batch=64, **asked)
    assert found.results
    for row in found.results:
        (planned,) = row.plan().results
        assert planned.verdict is not None
        assert (planned.verdict.required_bytes, planned.verdict.status) == (row.required_bytes, row.status)
    longest = mla_cost.longest(scope="attention", form="laga", device="a100-80gb")["laga"]
    fullest = longest.plan()
    assert fullest is not None
    verdict = fullest.results[0].verdict
    assert verdict is not None
    assert verdict.required_bytes == longest.required_bytes
    assert fullest.inputs["seq_len"] == longest.max_seq_len
    fewest = longest.min_plan()
    assert fewest is not None
    assert fewest.results[0].verdict is not None
    assert fewest.results[0].verdict.status == longest.min_status
