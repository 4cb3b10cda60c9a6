"""The device runner on its CPU path, alone and under torchrun."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

import torch

from mla_cost.checks.reference.device import main
from tests.choosing import EXHAUSTIVE

TINY = ["--model", "tiny", "--seq-len", "16", "--steps", "1"]


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_records_are_appended(tmp_path: Path) -> None:
    output = tmp_path / "runs.jsonl"
    main([*TINY, "--form", "laga", "--sp", "4", "--fake-group", "--output", str(output)])
    main([*TINY, "--form", "absorbed", "--no-q-lora", "--heads", "4", "--output", str(output)])
    first, second = lines(output)
    assert first["schema"] == "mla-cost/device-record/1"
    assert (first["group"], first["spec"]["sp"], first["spec"]["form"]) == ("fake", 4, "laga")
    assert first["versions"]["torch"] == torch.__version__
    assert second["spec"]["dims"]["q_lora_rank"] is None
    assert second["spec"]["dims"]["heads"] == 4
    assert second["figures"]["seconds"] > 0


@pytest.mark.skipif(torch.cuda.is_available(), reason="a device with a peak")
def test_the_cpu_has_no_peak_to_report(capsys: pytest.CaptureFixture[str]) -> None:
    main(TINY)
    figures = json.loads(capsys.readouterr().out)["figures"]
    assert figures["max_memory_allocated"] is None
    assert figures["requested_bytes_peak"] is None


def test_bad_input_is_one_message(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main([*TINY, "--form", "absorbed", "--kernel", "flash"])
    assert stop.value.code == 2
    assert "error: kernel flash does not accept the shared key" in capsys.readouterr().err


@pytest.mark.xdist_group("ranks")
@pytest.mark.skipif(not EXHAUSTIVE, reason="three processes import torch, 10 s: make exhaustive")
def test_under_torchrun(tmp_path: Path, checkout: Path) -> None:
    output = tmp_path / "runs.jsonl"
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [*launch, "-m", "mla_cost.checks.reference", *TINY, "--form", "absorbed", "--output", str(output)]
    subprocess.run(command, check=True, cwd=checkout, capture_output=True, timeout=120)
    (record,) = lines(output)
    assert (record["group"], record["spec"]["sp"]) == ("gloo", 2)
