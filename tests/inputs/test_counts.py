"""Counts of tokens and amounts of memory, the same by flag, by --set and in a plan file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mla_cost.cli import main
from mla_cost.errors import InputError
from mla_cost.inputs import plan_files
from mla_cost.inputs.command import command_of, settings_of
from mla_cost.inputs.settings import PlanSettings

COUNTS = {"8k": 8192, "128k": 131072, "1M": 1048576, "16_384": 16384, "1e4": 10000, "4096": 4096, "1.5k": 1536}


def by_flag(name: str, value: str) -> PlanSettings:
    return plan_files.settings(None, {name: value}, {}, {})


def by_set(name: str, value: str) -> PlanSettings:
    return plan_files.settings(None, {}, plan_files.assignments([f"{name}={value}"]), {})


def by_file(name: str, value: str, folder: Path) -> PlanSettings:
    path = folder / "plan.yaml"
    path.write_text(f"{name}: {value}\n")
    return plan_files.settings(path, {}, {}, {})


@pytest.mark.parametrize("text", COUNTS)
def test_a_count_of_tokens_is_the_same_everywhere(text: str, tmp_path: Path) -> None:
    found = [by_flag("seq_len", text), by_set("seq_len", text), by_file("seq_len", text, tmp_path)]
    assert [each.seq_len for each in found] == [COUNTS[text]] * 3


def test_what_is_no_count_is_refused_alike(tmp_path: Path) -> None:
    for read in (by_flag, by_set, lambda name, value: by_file(name, value, tmp_path)):
        with pytest.raises(InputError, match="must be a whole number such as 16384, 16_384, 16k or 1M, not '8q'"):
            read("seq_len", "8q")


def test_commands_that_take_tokens_take_them_short(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["fit", "--scope", "attention", "--form", "laga", "--device", "h100-80gb", "--max-seq-len", "64k"]
    with pytest.raises(SystemExit) as ended:
        main([*words, "--format", "json"])
    assert ended.value.code == 0
    (row,) = json.loads(capsys.readouterr().out)["results"]
    assert row["max_seq_len"] <= 65536


@pytest.mark.parametrize("value", ["20", "1.5", "1048575"])
def test_a_bare_amount_of_memory_asks_for_its_unit(value: str, tmp_path: Path) -> None:
    for read in (by_flag, by_set, lambda name, value: by_file(name, value, tmp_path)):
        with pytest.raises(InputError, match=f"has no unit; allowed: {value}GiB, {value}MiB or {value}B"):
            read("other_memory", value)


def test_bytes_that_are_meant_are_taken_and_replayed(tmp_path: Path) -> None:
    for text, amount in {"0": 0, "1048576": 2**20, "20B": 20, "2GiB": 2**31}.items():
        found = [by_flag("other_memory", text), by_set("other_memory", text), by_file("other_memory", text, tmp_path)]
        assert [int(each.other_memory) for each in found] == [amount] * 3
        small: Any = PlanSettings.model_validate({"other_memory": amount})
        assert int(settings_of(command_of(small)).other_memory) == amount
