"""Ready plans: each is found by name, says what the tool says of it, and names what is not priced."""

from __future__ import annotations

import json

import pytest

import mla_cost
from mla_cost.cli import main
from mla_cost.errors import InputError
from mla_cost.inputs import catalog, plan_files
from mla_cost.studies import presets

NAMES = catalog.plan_names()
WANTED = {
    "deepseek-v3-2048-h800",
    "deepseek-v3-512-910b",
    "kimi-k2-128k",
    "moonlight-8-h100",
    "deepseek-v2-lite-8-a100",
}


def text(name: str) -> str:
    return catalog.plan_path(name).read_text(encoding="utf-8")


def printed(capsys, *arguments: str, code: int = 0) -> str:
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    out, err = capsys.readouterr()
    assert ended.value.code == code, err
    return out or err


def test_the_plans_of_the_issue_are_there():
    assert set(NAMES) >= WANTED


@pytest.mark.parametrize("name", NAMES)
def test_what_a_plan_says_of_itself_is_what_the_tool_says(name):
    """Its verdicts, and where it does not fit the least change that does."""
    answer = presets.answered(name)
    assert presets.with_verdicts(text(name), presets.written(answer)) == text(name), (
        "run python -m mla_cost.studies.presets"
    )
    for row in answer.results:
        assert row.verdict is not None
        assert f"{row.form} on {row.device}, kernel {row.kernel}: {row.verdict.status}," in text(name)
        assert (row.verdict.remedy is None) == (row.verdict.status in {"fits", "tight"})


@pytest.mark.parametrize("name", NAMES)
def test_a_plan_says_what_is_not_priced(name):
    head = text(name).partition(presets.OPENS)[0].replace("\n# ", " ").lower()
    assert [word for word in ("not priced", "recomputation", "profile reference") if word not in head] == []


def test_the_published_plan_has_the_published_degrees():
    settings = plan_files.settings(catalog.plan_path("deepseek-v3-2048-h800"), {}, {}, {})
    degrees = (settings.tp, settings.sp, settings.pp, settings.ep, settings.dp)
    assert degrees == (1, 1, 16, 64, 128)
    assert (settings.seq_len, settings.sharding, settings.moment_dtype) == (4096, "zero1", "bf16")
    assert settings.micro_batch * settings.micro_batches * settings.dp == 15_360
    assert "arXiv 2412.19437" in text("deepseek-v3-2048-h800")


def test_ranks_are_those_of_the_titles():
    ranks = {plan.name: plan.ranks for plan in presets.plans()}
    assert {name: ranks[name] for name in WANTED} == {
        "deepseek-v3-2048-h800": 2048,
        "deepseek-v3-512-910b": 512,
        "kimi-k2-128k": 1024,
        "moonlight-8-h100": 8,
        "deepseek-v2-lite-8-a100": 8,
    }


PAPER = [2917, 3493, 2929, 7842, 10207, 7860, 27348, 36596, 27375]


def test_the_papers_layer_prints_table_2_beside_the_prediction(capsys):
    """Nine cells, and at sizes that the table does not have the same nine."""
    for more in ([], ["--sp", "4", "--seq-len", "8192", "--set", "dims.heads=64"]):
        out = printed(capsys, "plan", "laga-paper", *more)
        cells = [line.split() for line in out.splitlines() if line.strip().startswith("table-2-")]
        assert [cell[1] for cell in cells] == (
            ["2,917", "3,493", "2,929", "7,842", "10,207", "7,860", "27,348", "36,596", "27,375"]
        )
        assert {cell[-1] for cell in cells} == {"matches"}


@pytest.mark.parametrize(
    ("asked", "reported"),
    [("papr/table-2", "did you mean paper?"), ("paper/table-3", "paper/table-2"), ("paper", "paper/table-1")],
)
def test_published_rows_that_do_not_exist_are_refused_before_anything_is_printed(capsys, asked, reported):
    out = printed(capsys, "plan", "laga-paper", "--set", f"published={asked}", code=2)
    assert out.startswith("mla-cost: published: ")
    assert reported in out


def test_the_papers_absorbed_layer_under_the_kernel_that_is_documented():
    """What docs/decisions/0015 tells a user to do: 576-wide heads, no pse."""
    row = mla_cost.plan(**mla_cost.plan_file("laga-paper") | {"kernel": "npu-fusion"})["absorbed"]
    assert row.verdict is not None
    assert row.verdict.status == "fits"
    assert round((row.memory.allocated_peak_bytes or 0) / 1e9, 1) == 3.3


def test_weights_that_do_not_run_belong_to_a_block(capsys):
    assert "idle_mlp" in printed(capsys, "plan", "--idle-mlp", "8", "--scope", "model", code=2)
    printed(capsys, "plan", "--idle-mlp", "0", "--scope", "model")
    printed(capsys, "plan", "--idle-mlp", "8", "--scope", "attention")


def test_a_plan_is_found_by_name_and_by_path(capsys):
    arguments = ("--form", "laga", "--format", "json")
    named = printed(capsys, "plan", "Moonlight 8 H100", *arguments)
    assert named == printed(capsys, "plan", str(catalog.plan_path("moonlight-8-h100")), *arguments)
    assert json.loads(named)["inputs"]["scope"] == "model"


def test_flags_override_a_ready_plan(capsys):
    found = json.loads(
        printed(capsys, "plan", "moonlight-8-h100", "--form", "laga", "--remat", "full", "--format", "json")
    )
    assert found["inputs"]["remat"] == "full"
    assert found["results"][0]["verdict"]["status"] == "fits"


def test_a_name_that_is_no_plan_names_the_nearest():
    with pytest.raises(InputError, match=r"unknown plan 'moonlight'.*`mla-cost plans`.*did you mean moonlight-8-h100"):
        catalog.plan_path("moonlight")


def test_plans_are_listed(capsys):
    listed = printed(capsys, "plans")
    assert [name for name in NAMES if name not in listed] == []
    found = json.loads(printed(capsys, "plans", "--format", "json"))
    assert found["schema"] == "mla-cost/plans/1"
    assert [plan["name"] for plan in found["plans"]] == list(NAMES)
    assert all(plan["title"] for plan in found["plans"])
    assert max(map(len, listed.splitlines())) <= 80


def test_verdicts_are_put_once_after_the_comments_that_open_a_file():
    block = f"{presets.OPENS}\n# a\n{presets.CLOSES}\n"
    once = presets.with_verdicts("# title\n#\n# words\nmodel: x  # y\n", block)
    assert once == f"# title\n#\n# words\n#\n{block}model: x  # y\n"
    assert presets.with_verdicts(once, block) == once


def test_a_ready_plan_in_python_is_the_one_of_the_command_line(capsys):
    study = mla_cost.plan(**mla_cost.plan_file("moonlight-8-h100"))
    with pytest.raises(SystemExit):
        main(["plan", "moonlight-8-h100", "--format", "json"])
    assert json.loads(capsys.readouterr().out) == json.loads(study.to_json())


def test_a_ready_plan_in_place_of_a_model_is_told_where_it_goes():
    with pytest.raises(mla_cost.InputError, match=r"'moonlight-8-h100' is a ready plan and no model") as reported:
        mla_cost.plan("moonlight-8-h100")
    assert "mla_cost.plan(**mla_cost.plan_file('moonlight-8-h100'))" in str(reported.value)
