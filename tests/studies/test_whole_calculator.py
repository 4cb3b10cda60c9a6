"""`mla-cost page --scope model`: whole models by JavaScript printed from the rules, to the byte as `plan` has them."""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import mla_cost
from mla_cost.batch.codes import STATUSES
from mla_cost.batch.pricer import price
from mla_cost.inputs import catalog
from mla_cost.inputs.settings import PlanSettings
from mla_cost.results import Result
from mla_cost.studies.whole_calculator import whole_calculator
from mla_cost.views.page import page
from tests.choosing import EXHAUSTIVE
from tests.views.browser import evaluated

pytest.importorskip("jinja2")
MODEL, DEVICE = "deepseek-v2-lite", "910b-64gb"
FORMS = ("explicit", "absorbed", "laga") if EXHAUSTIVE else ("laga",)
FEWER: dict[str, Any] = {} if EXHAUSTIVE else {"tp": (1, 2), "pp": (1, 2, 4), "ep": (1, 4, 8), "remat": ("full",)}
NUMBERS = {
    "seq_len": (4096, 6144, 8192, 131072, 1 << 20),
    "sp": (1, 1, 2, 3, 4),
    "micro_batch": (1, 1, 2),
    "micro_batches": (1, 2, 3, 16, 64),
    "dp": (1, 2, 8, 8, 24, 64),
}
FIGURES = (
    "required_bytes",
    "usable_bytes",
    "headroom_bytes",
    "wire_bytes",
    "state_bytes",
    "gradient_bytes",
    "optimizer_bytes",
    "kept_bytes",
    "working_bytes",
)
OF_STAGES = (
    "layers",
    "weight_bytes",
    "gradient_bytes",
    "optimizer_bytes",
    "kept_bytes",
    "working_bytes",
    "allocated_peak_bytes",
)


@pytest.fixture(scope="module")
def held():
    """What the page holds."""
    return whole_calculator(catalog.model(MODEL), MODEL, FORMS, FEWER)


@pytest.fixture(scope="module")
def answered(held, tmp_path_factory) -> tuple[list[dict[str, Any]], list[list[dict[str, Any]]]]:
    """Random settings, and what the page answers for each of FORMS."""
    folder: Path = tmp_path_factory.mktemp("page")
    (folder / "page.html").write_text(page(held), encoding="utf-8")
    draw = random.Random(16)  # noqa: S311  # no secret
    choices: dict[str, Any] = {name: tuple(options) for name, options in held.selects.items()}
    choices |= {name: tuple(map(int, choices[name])) for name in ("tp", "pp", "ep")}
    states = [
        {**{name: draw.choice(each) for name, each in {**choices, **NUMBERS}.items()}, "device": DEVICE}
        for _ in range(300)
    ]
    asked = f"{json.dumps(states)}.map(v=>{json.dumps(FORMS)}.map(form=>price(form,v)))"
    return states, evaluated(folder / "page.html", asked, folder)


def test_random_settings_are_priced_as_a_sweep_prices_them(answered):
    states, answers = answered
    names = [name for name in states[0] if name != "device"]
    columns: dict[str, Any] = {name: [state[name] for state in states] for name in names}
    kinds: Counter[str] = Counter()
    for number, form in enumerate(FORMS):
        rows = price(
            catalog.model(MODEL), catalog.device(DEVICE), form, PlanSettings(scope="model").by_scope(), columns
        )
        for at, answer in enumerate(answers):
            found = answer[number]
            kinds[found["status"]] += 1
            if found["status"] == "not held":
                continue
            assert found["status"] == STATUSES[rows.status[at]], states[at]
            if found["status"] != "illegal":
                assert {name: found[name] for name in FIGURES} == {name: int(rows[name][at]) for name in FIGURES}, (
                    states[at]
                )
    assert {"fits", "oom", "illegal"} <= set(kinds)
    assert kinds["not held"] < len(states) / 10


def told(row: Result) -> dict[str, Any]:
    """What the page tells of a form, from the result of `plan`."""
    assert row.verdict is not None
    found: dict[str, Any] = {"status": row.verdict.status}
    if row.verdict.status == "illegal":
        return found
    sent: Counter[str] = Counter()
    for call in row.communication.collectives:
        sent[call.axis] += call.wire_bytes
    stages = [{name: getattr(stage, name) for name in OF_STAGES} for stage in row.memory.stages or ()]
    worst = stages[int(row.settings["stage"])]
    assert row.verdict.required_bytes == worst["allocated_peak_bytes"]
    found["payload_bytes"] = sum(call.payload_bytes for call in row.communication.collectives)
    found["stage"] = int(row.settings["stage"])
    return {**found, "stages": stages, "sent": {axis: amount for axis, amount in sent.items() if amount}}


def test_stages_and_axes_are_those_of_plan(answered):
    states, answers = answered
    priced = [at for at, answer in enumerate(answers) if answer[0]["status"] in {"fits", "tight", "oom"}]
    refused = [at for at, answer in enumerate(answers) if answer[0]["status"] == "illegal"]
    for at in (*priced[:12], *refused[:3]):
        asked = {name: value for name, value in states[at].items() if name != "device"}
        rows = mla_cost.plan(MODEL, DEVICE, scope="model", form=FORMS, **asked).results
        for row, found in zip(rows, answers[at], strict=True):
            for stage in found.get("stages", ()):
                buffers = stage.pop("buffer_bytes")
                states_and_work = (stage[name] for name in OF_STAGES[1:-1])
                assert buffers + sum(states_and_work) == stage["allocated_peak_bytes"]
            expected = told(row)
            assert {name: found[name] for name in expected} == expected, states[at]
            assert row.verdict is not None
            assert row.verdict.status != "illegal" or row.verdict.reason[:8] == found["reason"][:8]


def test_it_says_what_it_does_not_hold_and_carries_no_name_of_a_user(held):
    text = page(held._replace(title="</script><script>alert(1)</script>", name="a`${alert(1)}`<b"))
    assert len(text.encode()) < 1 << 20
    assert text.count("<script") == 2
    assert "alert(1)" not in text.rpartition("<script>")[2]
    assert "weights gathered layer by layer (fsdp); schemes other than the form" in text
    assert all(f'id="{name}"' in text for name in (*NUMBERS, "tp", "pp", "ep", "remat", "sharding", "gradient_dtype"))
