"""What the table of the model scope says in words: every line of it has 80 columns at most."""

from __future__ import annotations

import re

import pytest

import mla_cost
from mla_cost.cli import main

ALONE = "--model deepseek-v2-lite --device a100-80gb --form explicit --sp 1 --seq-len 4096"


@pytest.fixture
def plan(capsys):
    """Runs a plan; what it prints."""

    def run(line: str) -> str:
        with pytest.raises(SystemExit) as ended:
            main(["plan", *line.split()])
        out, err = capsys.readouterr()
        assert ended.value.code == 0, err
        assert max(map(len, out.splitlines())) <= 80
        return out

    return run


def test_one_rank_is_one_and_has_no_buffers_of_communicators(plan):
    text = plan(ALONE)
    assert "\n1 rank: tp 1, sp 1, pp 1, ep 1, dp 1;" in text
    (reserved,) = re.findall(r"reserved, budgeted: .*(?:\n.*)?\nform", text)
    assert "NCCL" not in reserved
    assert " 0.00" not in reserved


@pytest.mark.parametrize("typed", ["moe+none+core_attn+moe", "core_attn+moe", "moe+core_attn+core_attn"])
def test_a_policy_is_told_once_and_in_one_order(plan, typed):
    assert "recomputation core_attn+moe\n" in plan(f"moonlight-8-h100 --form explicit --remat {typed}")
    study = mla_cost.plan(**mla_cost.plan_file("moonlight-8-h100") | {"form": "explicit", "remat": typed})
    assert (study.inputs["remat"], study["explicit"].settings["remat"]) == ("core_attn+moe", "core_attn+moe")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("moonlight-8-h100 --form explicit", "oom: 19.2 GiB short"),
        ("moonlight-8-h100 --form explicit --remat moe --device h200-141gb", "fits, 66.1 GiB left"),
        ("deepseek-v3-2048-h800 --form explicit --stage 15 --remat full", "fits, "),
        ("moonlight-8-h100 --form explicit --profile megatron --pp 3 --dp 8 --micro-batches 6", "fits, "),
    ],
)
def test_a_verdict_stands_on_one_line_beside_its_figures(plan, line, said):
    lines = plan(line).splitlines()
    (at,) = [number for number, row in enumerate(lines) if row.startswith("explicit  ")]
    assert re.search(rf"\d  {re.escape(said)}", lines[at])
    assert lines[at + 1] == ""


def test_blocks_that_do_not_fit_have_their_verdict_on_one_line(plan):
    text = plan("--scope attention --kernel eager --layers 61 --device 910b-64gb --form explicit")
    memory, _, time = text.partition("\nform        time  ")
    assert time
    (row,) = [row for row in memory.splitlines() if row.startswith("explicit  ")]
    assert row.endswith("  oom: 487.2 GiB short")
    assert "61 attention blocks" in text


def test_a_reason_that_wraps_stays_under_its_name(plan):
    text = plan("moonlight-8-h100 --form explicit --refused-levers")
    reported = text.partition("Refused\n")[2].partition("Smallest change")[0].splitlines()
    assert len(reported) > 4
    assert all(row.startswith("  ") for row in reported)
    assert any(row.startswith("  micro_batches 8 -> 16") for row in reported)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("", ""),
        ("--profile megatron", "also set: profile megatron"),
        ("--set imbalance_percent=worst", "also set: imbalance_percent worst"),
        ("--set cross_entropy=fused --set moment_dtype=bf16", "also set: moment_dtype bf16, cross_entropy fused"),
        ("--scheme kv-gather --sp 2 --dp 4 --kernel eager", "also set: scheme kv-gather"),
        (
            "--pp 3 --micro-batches 6 --set virtual_stages=3 --set micro_batch_group=6",
            "also set: virtual_stages 3, micro_batch_group 6",
        ),
        (
            "--set dims.heads=8 --set facts.num_dense_layers=2 --reserve NCCL\tbuffers=1GiB",
            "also set: reserve.NCCL buffers 1.00 GiB, dims.heads 8, facts.num_dense_layers 2",
        ),
    ],
)
def test_the_heading_tells_what_is_not_the_default(capsys, line, said):
    arguments = [part.replace("\t", " ") for part in line.split(" ") if part]
    with pytest.raises(SystemExit):
        main(["plan", "moonlight-8-h100", "--form", "explicit", *arguments])
    heading = capsys.readouterr().out.partition("GiB on one rank")[0]
    assert " ".join("".join(heading.partition("also set")[1:]).split()) == said
