"""Answers at 60, 80 and 200 columns: nothing cut, no number lost, no blanks at the ends of lines."""

from __future__ import annotations

import re
from typing import Any

import pytest

import mla_cost
from mla_cost.views import fit_table, search_table, terminal
from mla_cost.views.grid import TextGrid
from mla_cost.views.table import plan_text

WIDTHS = (60, 80, 200)
COMMANDS = ("mla-cost plan ", "mla-cost search ")  # on one line however long, to be copied whole
SEARCHED: dict[str, Any] = {"devices": 8, "global_batch": 16, "seq_len": 4096, "remat": ["none", "layernorm+moe_act"]}


def words(text: str) -> list[str]:
    return sorted(re.findall(r"[\d,.]+\d", text))


def require_whole(text: str, width: int) -> None:
    lines = text.splitlines()
    assert "…" not in text
    assert lines == [line.rstrip() for line in lines]
    assert all(len(line) <= width for line in lines if not line.startswith(COMMANDS))


@pytest.fixture(scope="module")
def searched() -> dict[str, Any]:
    asked = {"profile": "megatron", "form": "explicit", "sharding": "distributed", "top": 4, **SEARCHED}
    return mla_cost.search("moonlight-16b-a3b", "h100-80gb", **asked).to_dict()


@pytest.mark.parametrize("width", WIDTHS)
def test_a_search_is_whole(searched, width):
    text = search_table.search_text(searched, width)
    require_whole(text, width)
    assert searched["results"][0]["command"] in text.splitlines()
    for row in searched["results"]:
        assert f"{row['required_bytes'] / 2**30:,.2f}" in text
    assert {row["remat"] for row in searched["results"]} <= set(re.findall(r"[a-z_+]+", text))


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("asked", [{"pp": 4, "dp": 2, "ep": 2, "micro_batches": 8}, {"scope": "attention"}])
def test_a_plan_is_whole(asked, width):
    found = mla_cost.plan("deepseek-v2-lite", "h100-80gb", **asked)
    text = plan_text(found, width)
    require_whole(text, width)
    for row in found.results:
        assert f"{(row.memory.allocated_peak_bytes or 0) / 2**30:,.2f}" in text
        stages = row.memory.stages or ()
        assert not stages or f"{max(stage.sent_bytes for stage in stages) / 2**30:,.2f}" in text


@pytest.mark.parametrize("width", WIDTHS)
def test_a_fit_is_whole(width):
    found = mla_cost.longest("deepseek-v2-lite", "h100-80gb", seq_len=4096, form="laga")
    text = fit_table.fit_text(found.to_dict(), width)
    require_whole(text, width)
    assert {found["laga"].min_command, found["laga"].wider_command} <= set(text.splitlines())


def test_a_narrow_terminal_gets_words_with_the_same_numbers():
    table = TextGrid(("form", "saved", "sent", "verdict"), left=("form", "verdict"))
    for number in range(3):
        table.add("laga", f"{number}.25", f"12,34{number}.75", "oom: 1.0 GiB short")
    wide, narrow = (terminal.text(table, width) for width in (80, 20))
    assert set(words(wide)) <= set(words(narrow))
    assert "saved 0.25" in " ".join(narrow.split())
    require_whole(narrow, 20)


def test_blanks_go_and_colours_stay():
    assert terminal.trimmed("a \x1b[1mb  \x1b[0m  \n  c \n") == "a \x1b[1mb\x1b[0m\n  c\n"
