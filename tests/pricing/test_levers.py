"""Levers: each difference is that of two plans, degrees keep ranks and batch, and a remedy does fit."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from fractions import Fraction
from functools import cache
from typing import Any

import pytest

import mla_cost
from mla_cost import api
from mla_cost.cli import main
from mla_cost.errors import InputError
from mla_cost.inputs import catalog
from mla_cost.inputs.catalog import model
from mla_cost.inputs.settings import PlanSettings
from mla_cost.mesh.layout_string import parse_layout
from mla_cost.mesh.placement import even_layout
from mla_cost.pricing import rows, what_ifs
from mla_cost.results import Lever, Result, Verdict

ATTENTION: dict[str, Any] = {
    "scope": "attention",
    "kernel": "eager",
    "device": "910b-64gb",
    "layers": 8,
    "sp": 8,
    "seq_len": 16384,
}
MODEL: dict[str, Any] = {
    "model": "deepseek-v2-lite",
    "device": "a100-80gb",
    "scope": "model",
    "seq_len": 4096,
    "sp": 1,
    "ep": 8,
    "dp": 8,
    "micro_batch": 2,
    "micro_batches": 8,
}
PIPELINE = MODEL | {"model": "deepseek-v3", "device": "h800-80gb", "pp": 16, "ep": 64, "dp": 128, "micro_batch": 1}
DENSE: dict[str, Any] = {
    "model": "minicpm3-4b",
    "scope": "model",
    "form": "explicit",
    "seq_len": 4096,
    "micro_batch": 2,
}
PIPELINE |= {"pipeline_layout": "Ettt|(tttt|)*14ttmL", "form": "explicit"}


def verdict(row: Result) -> Verdict:
    assert row.verdict is not None
    return row.verdict


def answer(question: Mapping[str, Any], *, refused: bool = False) -> tuple[Result, ...]:
    """The rows with their levers; a question that several tests ask is priced once."""
    return _answered(json.dumps(dict(question)), refused)


@cache
def _answered(question: str, refused: bool) -> tuple[Result, ...]:
    return mla_cost.levers(**json.loads(question), refused=refused).results


def levers(*, refused: bool = False, **question: Any) -> list[tuple[Result, Lever]]:
    return [(row, lever) for row in answer(question, refused=refused) for lever in verdict(row).levers]


def priced(question: Mapping[str, Any], row: Result, changed: Mapping[str, Any]) -> Result:
    """The plan with a change, asked for anew."""
    (found,) = mla_cost.plan(**{**question, "form": row.form, **changed}).results
    return found


@pytest.mark.parametrize("question", [ATTENTION, MODEL], ids=["attention", "model"])
def test_a_difference_is_that_of_two_plans(question):
    for row, lever in levers(**question, refused=True):
        after = priced(question, row, lever.settings)
        assert lever.status == verdict(after).status
        if lever.status != "illegal":
            assert lever.required_bytes == verdict(after).required_bytes
            assert lever.required_delta_bytes == (verdict(after).required_bytes or 0) - (
                verdict(row).required_bytes or 0
            )


def test_one_block_sends_and_runs_what_its_plan_says():
    for row, lever in levers(**ATTENTION):
        after = priced(ATTENTION, row, lever.settings)
        assert lever.sent_bytes == sum(cost.wire_bytes for cost in after.communication.collectives)
        assert lever.flops == (after.flops.forward.executed or 0) + (after.flops.backward.executed or 0)


@pytest.mark.parametrize("question", [ATTENTION, MODEL, PIPELINE], ids=["attention", "model", "pipeline"])
def test_levers_are_sorted_and_none_is_idle_or_refused(question):
    for row in answer(question):
        freed = [lever.required_delta_bytes or 0 for lever in verdict(row).levers]
        assert freed == sorted(freed)
        for lever in verdict(row).levers:
            assert lever.reason == ""
            assert any((lever.required_delta_bytes, lever.sent_delta_bytes, lever.flops_delta)), lever.change


@pytest.mark.parametrize("question", [ATTENTION, MODEL, PIPELINE], ids=["attention", "model", "pipeline"])
def test_what_recomputation_drops_less_what_it_keeps_is_what_the_plan_saves_less(question):
    """Only recomputation has the two figures; full keeps nothing but what layers hand on and the ends."""
    seen = set()
    for row, lever in levers(**question):
        assert (lever.dropped_bytes is None) == (lever.lever != "remat")
        if lever.dropped_bytes is None or lever.kept_bytes is None:
            continue
        seen.add(lever.settings["remat"])
        assert lever.dropped_bytes > lever.kept_bytes >= 0
        if question is ATTENTION:
            after = priced(question, row, lever.settings)
            assert (after.memory.saved_bytes or 0) - (
                row.memory.saved_bytes or 0
            ) == lever.kept_bytes - lever.dropped_bytes
    assert {"full", "core_attn"} <= seen


def test_recomputing_up_projections_drops_what_megatron_says():
    """Typed from docs/megatron.md: q, k, v, normed latents, roots and the latent's copy go."""
    question = MODEL | {"model": "moonlight-16b-a3b", "device": "h100-80gb", "tp": 2, "dp": 4, "micro_batch": 1}
    found = levers(**question, form="explicit", profile="megatron", kernel="flash")
    (lever,) = (lever for _, lever in found if lever.settings == {"remat": "mla_up_proj"})
    positions, local = 4096, 2048
    layer = 2 * positions * 8 * (192 + 192 + 128) + 2 * local * 2048 + 4 * local + 2 * 2 * local * 512 + 4 * local
    assert lever.dropped_bytes == 27 * layer
    assert lever.kept_bytes == 27 * (2 * local * 576 + 2 * positions * 64)


def test_every_lever_of_the_issue_is_pulled():
    pulled = {lever.lever for question in (ATTENTION, MODEL, PIPELINE) for _, lever in levers(**question, refused=True)}
    wanted = {"form", "scheme", "kernel", "v_layout", "remat", "micro_batch", "sp", "tp", "pp", "ep", "sharding"}
    assert pulled == wanted


def test_a_degree_keeps_ranks_and_batch_where_dp_has_ranks_to_give():
    for _, lever in levers(**PIPELINE):
        if lever.lever in {"sp", "tp", "pp"}:
            new = {**PIPELINE, **lever.settings}
            assert lever.ranks_factor == 1
            assert new["dp"] * new["micro_batches"] == PIPELINE["dp"] * PIPELINE["micro_batches"]
            assert new[lever.lever] * new["dp"] == PIPELINE.get(lever.lever, 1) * PIPELINE["dp"]


def test_a_degree_doubles_the_ranks_where_dp_has_none():
    found = {lever.lever: lever for _, lever in levers(**DENSE, device="mi300x", refused=True)}
    assert found["sp"].ranks_factor == found["tp"].ranks_factor == 2
    assert "dp" not in found["tp"].settings


def test_the_same_step_runs_the_same_flops():
    """Half the micro-batch, or the same ranks as another product of degrees: no flop more or less."""
    found = {lever.lever: lever for row, lever in levers(**MODEL) if row.form == "explicit"}
    assert found["micro_batch"].flops_delta == found["sp"].flops_delta == 0
    assert (found["micro_batch"].required_delta_bytes or 0) < 0


@pytest.mark.parametrize("parts", [2, 3, 7, 16, 30, 32, 60, 61])
def test_an_even_layout_has_every_layer_and_ends_no_fuller_than_the_rest(parts):
    found = parse_layout(even_layout(61, 1, parts))
    sizes = [part.count("t") for part in found]
    assert (len(found), sum(sizes)) == (parts, 61)
    assert max(sizes) - min(sizes) <= 1
    assert max(sizes[0], sizes[-1]) <= max(sizes[1:-1], default=61)
    assert found[0].startswith("E")
    assert found[-1].endswith("mL")


def test_a_remedy_is_told_where_it_does_not_fit_and_nowhere_else():
    for question in (ATTENTION, ATTENTION | {"layers": 1}, MODEL, PIPELINE):
        for row in answer(question):
            assert (verdict(row).remedy is None) == (verdict(row).status in {"fits", "tight"})


def test_a_remedy_fits():
    """The words name the settings; priced anew with these it fits, and no single lever that fits was passed over."""
    question = PIPELINE | {"micro_batches": 120}
    (row,) = mla_cost.levers(**question).results
    assert verdict(row).status == "oom"
    changed = re.match(r"(\w+) ([\w-]+):", (verdict(row).remedy or ""))
    assert changed, verdict(row).remedy or ""
    assert verdict(priced(question, row, {changed[1]: changed[2]})).status == "fits"
    assert (verdict(row).remedy or "").startswith("remat full: the worst stage fits")


def test_a_remedy_takes_several_steps_where_one_is_not_enough():
    """Nothing but more ranks is left: dp has none to give, and layers are recomputed already."""
    (row,) = mla_cost.levers(**DENSE, device="910b4-32gb", remat="full").results
    assert verdict(row).status == "oom"
    assert "times the ranks" in (verdict(row).remedy or "")


def test_what_no_change_makes_fit_is_said():
    question = {**PIPELINE, "device": "910b4-32gb", "pp": 1, "dp": 1, "ep": 1, "pipeline_layout": None}
    (row,) = mla_cost.levers(**question).results
    assert (verdict(row).remedy or "") == f"no {what_ifs.LONGEST} changes of these settings make it fit"


def test_plain_plans_have_no_levers():
    assert all(
        verdict(row).levers == () and verdict(row).remedy is None for row in mla_cost.plan(scope="attention").results
    )


def test_levers_need_a_device():
    with pytest.raises(InputError, match="a verdict needs a device"):
        mla_cost.levers(device=None, scope="attention")


def test_an_illegal_row_keeps_its_own_way_out():
    absorbed = mla_cost.levers(device="910b-64gb", kernel="flash", scope="attention")["absorbed"]
    assert verdict(absorbed).status == "illegal"
    assert verdict(absorbed).levers == ()


BLOCKS = ["plan", "--scope", "attention", "--kernel", "eager", "--layers", "8"]


@pytest.mark.parametrize("arguments", [BLOCKS, ["plan", "moonlight-8-h100", "--form", "laga"]])
def test_the_table_has_them_on_request(capsys, arguments):
    texts = []
    for flags in ([], ["--levers"], ["--refused-levers"]):
        with pytest.raises(SystemExit):
            main([*arguments, *flags])
        texts.append(capsys.readouterr().out)
    plain, levers, refused = texts
    assert "Levers of" not in plain
    assert "Levers of laga" in levers
    assert "Smallest change that fits: " in levers
    assert "Refused" not in levers
    assert "Refused" in refused
    assert max(map(len, refused.splitlines())) <= 80


def test_json_has_them_on_request(capsys):
    with pytest.raises(SystemExit):
        main(
            [
                "plan",
                "--scope",
                "attention",
                "--kernel",
                "eager",
                "--layers",
                "8",
                "--device",
                "910b-64gb",
                "--levers",
                "--format",
                "json",
            ]
        )
    rows = json.loads(capsys.readouterr().out)["results"]
    assert all(row["verdict"]["levers"] for row in rows)
    assert rows[0]["verdict"]["levers"][0]["settings"]["kernel"]


@pytest.mark.parametrize("more", [{}, {"pp": 3, "tp": 2, "dp": 8, "ep": 4, "sharding": "ddp"}])
def test_no_change_leaves_less_than_half_the_weights_of_an_average_stage(more):
    """What `_hopeless` rests on."""
    settings = PlanSettings(model="deepseek-v2-lite", device=("h100-80gb",), scope="model", form=("laga",), **more)
    settings = settings.by_scope()
    priced_model, device = model(settings.model), catalog.device("h100-80gb")
    (row,) = rows.rows(priced_model, device, settings)
    asked = what_ifs.PricedPlan(priced_model, device, settings, row)

    def average(priced):
        stages = priced.row.memory.stages
        return Fraction(sum(stage.weight_bytes + (0 if more else stage.moments_bytes) for stage in stages), len(stages))

    after = [asked.after(change) for change in what_ifs.changes(asked)]
    made = [each for each in after if each.status != "illegal"]
    assert len(made) > 15
    assert all(2 * average(each) >= average(asked) for each in made)


def test_a_model_whose_states_alone_are_too_large_is_answered_without_pricing_what_cannot_help(monkeypatch):
    """DeepSeek-V3 on one rank: weights and moments are 390 GiB on 16 times the ranks; first changes are reported."""
    priced: list[Any] = []
    after = what_ifs.PricedPlan.after

    def counted(self: what_ifs.PricedPlan, change: Any, **more: Any) -> what_ifs.PricedPlan:
        priced.append(change)
        return after(self, change, **more)

    monkeypatch.setattr(what_ifs.PricedPlan, "after", counted)
    settings = PlanSettings(model="deepseek-v3", device=("h100-80gb",), scope="model", form=("laga",)).by_scope()
    (row,) = api.with_levers(settings).results
    assert row.verdict is not None
    assert row.verdict.remedy == f"no {what_ifs.LONGEST} changes of these settings make it fit"
    assert len(priced) < 40
