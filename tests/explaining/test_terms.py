"""Where a number comes from: the items of every term add up to the number of the plan, exactly."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from mla_cost import api
from mla_cost.cli import main
from mla_cost.errors import InputError
from mla_cost.inputs.settings import PlanSettings
from mla_cost.results import Result
from tests.choosing import EXHAUSTIVE


def usual(question: Mapping[str, Any]) -> dict[str, Any]:
    """Of blocks these are about, op by op; whole models have their own defaults."""
    return {} if question.get("scope") == "model" else {"scope": "attention", "kernel": "eager"}


DEEPSEEK: dict[str, Any] = {
    "model": "deepseek-v3",
    "device": ("h800-80gb",),
    "scope": "model",
    "seq_len": 4096,
    "sp": 1,
    "pp": 16,
    "ep": 64,
    "dp": 128,
    "micro_batches": 120,
    "pipeline_layout": "Ettt|(tttt|)*14ttmL",
}
LITE: dict[str, Any] = {"model": "deepseek-v2-lite", "device": ("910b-64gb",), "scope": "model", "seq_len": 4096}
LITE |= {"sp": 1, "ep": 8, "dp": 8}
ATTENTION = [
    {},
    {"layers": 5},
    {"layers": 3, "kernel": "flash"},
    {"remat": "full"},
    {"layers": 4, "remat": "core_attn"},
]
ATTENTION += [{"device": ()}, {"sp": 1, "seq_len": 2048}, {"norm": "composite", "micro_batch": 2}]
MODELS = [
    DEEPSEEK,
    DEEPSEEK | {"remat": "full"},
    DEEPSEEK | {"tp": 2, "dp": 64, "sharding": "zero1", "remat": "moe"},
    DEEPSEEK | {"pp": 4, "dp": 512, "pipeline_layout": "Et*7|(tttttttt|)*6t*6mL"},
    DEEPSEEK | {"sharding": "ddp", "gradient_dtype": "bf16"},
    DEEPSEEK | {"profile": "megatron", "form": ("explicit",)},
    DEEPSEEK | {"profile": "megatron", "form": ("explicit",), "tp": 2, "dp": 64, "remat": "moe"},
    LITE | {"gradient_dtype": "bf16", "remat": "full"},  # peaks in the optimizer step
    LITE | {"sharding": "zero2"},
    LITE | {"sp": 2, "dp": 4, "kernel": "eager"},
]
STAGE = {
    "weights": "weight_bytes",
    "gradients": "gradient_bytes",
    "optimizer": "optimizer_bytes",
    "kept": "kept_bytes",
    "working": "working_bytes",
    "allocated": "allocated_peak_bytes",
}


def settings_of(question: dict[str, Any]) -> PlanSettings:
    return PlanSettings(**{**usual(question), **question})


def totals(settings: PlanSettings, term: str, stage: int | None = None) -> list[int]:
    found = api.terms(settings.model_copy(update={"stage": stage}), term)
    for it in found:
        assert it.total_bytes == sum(item.bytes for item in it.items)
        assert all(item.name and item.bytes > 0 for item in it.items if term != "usable")
    return [it.total_bytes for it in found]


def priced(settings: PlanSettings) -> list[Result]:
    return [row for row in api.answer(settings).results if row.memory.allocated_peak_bytes is not None]


def show(question: dict[str, Any]) -> str:
    return " ".join(f"{name}={value}" for name, value in question.items()) or "default"


@pytest.mark.parametrize("question", ATTENTION, ids=show)
def test_items_of_a_block_add_up(question):
    settings = settings_of(question)
    rows = priced(settings)
    for term, field in {
        "saved": "saved_bytes",
        "peak": "peak_bytes",
        "allocated": "allocated_peak_bytes",
        "parameters": "parameter_bytes",
        "gradients": "parameter_gradient_total_bytes",
        "workspace": "kernel_workspace_bytes",
    }.items():
        assert totals(settings, term) == [getattr(row.memory, field) for row in rows], term
    assert totals(settings, "sent") == [sum(c.wire_bytes for c in row.communication.collectives) for row in rows]


@pytest.mark.parametrize("question", MODELS, ids=show)
def test_items_of_every_stage_add_up(question):
    settings = settings_of(question)
    rows = priced(settings)
    stages = sorted({0, settings.pp // 2, settings.pp - 1})
    for at, (term, field) in enumerate(STAGE.items()):
        # An everyday run asks each term of one stage: every stage is asked, and every term.
        for stage in stages if EXHAUSTIVE else [stages[at % len(stages)]]:
            expected = [getattr(row.memory.stages[stage], field) for row in rows if row.memory.stages]
            assert totals(settings, term, stage) == expected, (term, stage)


@pytest.mark.parametrize("question", MODELS, ids=show)
def test_the_worst_stage_is_the_default(question):
    settings = settings_of(question)
    rows = priced(settings)
    for term, field in {"allocated": "allocated_peak_bytes", "saved": "saved_bytes", "peak": "peak_bytes"}.items():
        assert totals(settings, term) == [getattr(row.memory, field) for row in rows], term
    assert totals(settings, "required") == [row.verdict.required_bytes for row in rows if row.verdict]
    assert totals(settings, "usable") == [row.verdict.usable_bytes for row in rows if row.verdict]
    assert totals(settings, "sent") == [sum(c.wire_bytes for c in row.communication.collectives) for row in rows]


def test_inside_the_optimizer_step_nothing_is_kept():
    settings = PlanSettings(**LITE, gradient_dtype="bf16", remat="full", form=("explicit",))
    (row,) = priced(settings)
    (stage,) = row.memory.stages or ()
    assert (stage.moment, stage.kept_bytes, stage.in_flight) == ("step of gradients in fp32", 0, (0,))
    assert totals(settings, "working") == [stage.working_bytes] != totals(settings, "peak")
    assert row.memory.allocated_peak_moment == ("step", "gradients in fp32") != row.memory.peak_moment
    assert sum(part.bytes for part in row.memory.breakdown) == row.memory.allocated_peak_bytes


def test_what_works_inside_the_optimizer_step_is_called_so():
    settings = PlanSettings(**LITE, gradient_dtype="bf16", remat="full", form=("explicit",))
    (working,), (kept,) = api.terms(settings, "working"), api.terms(settings, "kept")
    assert working.meaning.startswith("gradients in fp32 that the optimizer step makes")
    assert kept.meaning.startswith("nothing: ")
    heading = " ".join(repr(api.answer(settings)).split())
    assert "working: the micro-batch at its peak (with none in flight, the fp32 gradients that the optimizer" in heading
    scheduled = settings.model_copy(update={"gradient_dtype": "fp32"})
    assert api.terms(scheduled, "working")[0].meaning == "activations of the micro-batch at work, at their peak"
    assert "the fp32 gradients that the optimizer" not in " ".join(repr(api.answer(scheduled)).split())


def test_states_are_their_parts():
    settings = PlanSettings(**DEEPSEEK)
    parts = [totals(settings, term) for term in ("weights", "gradients", "optimizer", "buffers")]
    assert totals(settings, "states") == [sum(row) for row in zip(*parts, strict=True)]


@pytest.mark.parametrize(
    ("question", "term", "stage", "message"),
    [
        ({}, "kept", None, "no such term: 'kept'; allowed: saved, peak"),
        (DEEPSEEK, "keptt", None, "did you mean kept"),
        ({"device": ()}, "usable", None, "no such term"),
        ({}, "saved", 1, "stage: 1 belongs to scope model"),
        (DEEPSEEK, "kept", 16, "no such stage: 16; allowed: 0 to 15"),
        ({"sp": 3}, "saved", None, "does not divide"),
    ],
)
def test_what_is_refused(question, term, stage, message):
    with pytest.raises(InputError) as refused:
        api.terms(settings_of(question | {"stage": stage}), term)
    assert message in str(refused.value)


def printed(capsys, *arguments: str, code: int = 0) -> str:
    scope = (
        [] if any(name.startswith("deepseek") for name in arguments) else ["--scope", "attention", "--kernel", "eager"]
    )
    with pytest.raises(SystemExit) as ended:
        main(["plan", *arguments, *scope])
    out, err = capsys.readouterr()
    assert ended.value.code == code, err
    return out or err


def test_the_table_ends_with_the_total(capsys):
    text = printed(capsys, "deepseek-v3-2048-h800", "--form", "explicit", "--explain-term", "kept", "--stage", "3")
    (term,) = api.terms(PlanSettings(**DEEPSEEK | {"form": ("explicit",), "stage": 3}), "kept")
    assert text.splitlines()[-1].split() == ["total", f"{term.total_bytes:,}"]
    assert "stage 3" in text
    assert max(map(len, text.splitlines())) <= 80


def test_json_has_the_items(capsys):
    found = json.loads(printed(capsys, "--form", "laga", "--explain-term", "saved", "--format", "json"))
    assert found["schema"] == "mla-cost/term/1"
    for term in found["terms"]:
        assert term["total_bytes"] == sum(item["bytes"] for item in term["items"])


@pytest.mark.parametrize("stage", [0, 7, 15])
def test_a_row_can_be_about_any_stage(stage):
    """Its figures are those of the stage, and the verdict speaks of it; the stages themselves stay as they are."""
    worst, asked = (priced(PlanSettings(**DEEPSEEK, stage=which)) for which in (None, stage))
    for row, other in zip(asked, worst, strict=True):
        assert row.verdict is not None
        assert row.memory.stages is not None
        assert row.memory.stages == other.memory.stages
        held = row.memory.stages[stage]
        assert (row.memory.allocated_peak_bytes, row.settings["stage"]) == (held.allocated_peak_bytes, stage)
        assert row.verdict.required_bytes == held.allocated_peak_bytes
        assert row.verdict.reason.startswith(f"stage {stage} ")


def test_a_stage_alone_and_other_formats_are_refused(capsys):
    assert "belongs to scope model" in printed(capsys, "--stage", "0", code=2)
    assert "allowed: table, json" in printed(capsys, "--explain-term", "saved", "--format", "csv", code=2)
    assert "levers print as a table or as JSON" in printed(capsys, "--levers", "--format", "csv", code=2)
