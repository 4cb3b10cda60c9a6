"""The published JSON Schema: up to date, strict enough to fail, and true of what `plan` prints."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from typing import Any

import jsonschema
import pytest

import mla_cost
from mla_cost.checks import schema
from mla_cost.checks.file_schemas import schemas
from mla_cost.declared.kernels import KERNELS
from mla_cost.inputs.catalog import configs_directory
from mla_cost.inputs.settings import PlanSettings
from mla_cost.inputs.yaml_files import load_mapping


def usual(question: Mapping[str, Any]) -> dict[str, Any]:
    """Of blocks these are about, op by op; whole models have their own defaults."""
    return {} if question.get("scope") == "model" else {"scope": "attention", "kernel": "eager"}


# The keys of section 5 of the design, typed from it; additions are allowed, losses are not.
RESULT = "device scope form scheme kernel profile settings memory communication flops time compared_to_explicit verdict"
MEMORY = """saved_bytes peak_bytes parameter_bytes parameter_gradient_bytes parameter_gradient_total_bytes
optimizer_bytes kernel_workspace_bytes allocated_peak_bytes peak_moment tensors breakdown stages"""
KEYS = {
    "Result": RESULT,
    "Memory": MEMORY,
    "PeakEvent": "phase op",
    "TensorCost": "name dims shape dtype bytes storage saved alive_at_peak formula",
    "Breakdown": "name bytes basis",
    "Communication": "forward backward collectives",
    "Traffic": "payload_bytes wire_bytes",
    "CollectiveCost": "kind tensor phase axis group_size count dtype payload_bytes wire_bytes",
    "Flops": "forward backward",
    "FlopCount": "model executed",
    "Difference": "tensor saved_delta_bytes peak_delta_bytes",
    "Verdict": "status required_bytes usable_bytes headroom_bytes reason basis levers",
    "Basis": "name bytes source",
}


@pytest.fixture(scope="module")
def validator(checkout):
    published = json.loads((checkout / "docs" / "plan.schema.json").read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator.check_schema(published)
    return jsonschema.Draft202012Validator(published)


def printed(**question: Any) -> dict[str, Any]:
    return json.loads(mla_cost.plan(**{**usual(question), **question}).to_json())


def test_the_published_schema_is_up_to_date(checkout):
    published = (checkout / "docs" / "plan.schema.json").read_text(encoding="utf-8")
    assert published == schema.text(), "run python -m mla_cost.checks.schema"


@pytest.mark.parametrize("record", KEYS)
def test_the_schema_has_the_keys_of_the_design(validator, record):
    assert set(KEYS[record].split()) <= set(validator.schema["$defs"][record]["required"])


def test_settings_have_the_keys_of_the_design():
    row = printed(device=None, form="laga")["results"][0]
    assert {"v_layout", "value_padding", "attention_layout", "remat", "causal"} <= row["settings"].keys()


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("device", [None, "910b-64gb", "a100-80gb"])
def test_real_answers_validate(validator, kernel, device):
    """All forms; flash has no program for the absorbed form, and no fused kernel exists on every device."""
    validator.validate(printed(kernel=kernel, device=device, seq_len=4096))


@pytest.mark.parametrize(
    "question",
    [
        {"sp": 3},
        {"sp": 3, "device": None},
        {"sp": 1, "seq_len": 2**30},
        {"kernel": "flash", "device": "910b-64gb"},
        {"sp": 1, "seq_len": 4096, "layers": 4},
        {"model": "deepseek-v2-lite", "sp": 2, "causal": False},
        {"model": "kimi-linear-48b-a3b"},
        {"scheme": "kv-gather", "form": "explicit"},
        {"other_memory": "2GiB", "reserve": {"runtime context": "1GiB"}, "device": "910b-64gb"},
        {"dims": {"q_lora_rank": None, "qk_rope_head_dim": 0}, "norm": "composite", "mask": "tensor"},
    ],
    ids=str,
)
def test_other_answers_validate(validator, question):
    validator.validate(printed(**question))


def test_every_status_was_among_them():
    def statuses(**question: Any) -> set[str]:
        return {row["verdict"]["status"] for row in printed(**question)["results"]}

    assert statuses(sp=3) == {"illegal"}
    assert statuses(kernel="flash", device="910b-64gb") == {"unsupported", "illegal"}
    assert statuses(layers=61) == {"oom"}


BREAKS = [
    ("schema", lambda plan: plan.update(schema="mla-cost/plan/2")),
    ("inputs", lambda plan: plan["inputs"].pop("seq_len")),
    ("dims", lambda plan: plan["inputs"]["dims"].pop("heads")),
    ("results", lambda plan: plan.update(results=[])),
    ("half a byte", lambda plan: plan["results"][0]["memory"].update(saved_bytes=0.5)),
    ("text", lambda plan: plan["results"][0]["memory"].update(peak_bytes="1 GiB")),
    ("missing", lambda plan: plan["results"][0]["memory"].pop("peak_bytes")),
    ("status", lambda plan: plan["results"][0]["verdict"].update(status="maybe")),
    ("tensor", lambda plan: plan["results"][0]["memory"]["tensors"][0].pop("storage")),
    ("collective", lambda plan: plan["results"][0]["communication"]["collectives"][0].update(count=None)),
    ("basis", lambda plan: plan["results"][0]["memory"]["breakdown"][0].update(basis="guessed")),
]


@pytest.mark.parametrize("break_it", [it for _, it in BREAKS], ids=[name for name, _ in BREAKS])
def test_the_schema_can_fail(validator, break_it):
    plan = printed(device="910b-64gb", form="laga")
    validator.validate(plan)
    broken = copy.deepcopy(plan)
    break_it(broken)
    assert not validator.is_valid(broken)


def test_equal_storages_are_summed_once():
    for row in printed(device=None)["results"]:
        tensors = row["memory"]["tensors"]
        for key, total in (("saved", "saved_bytes"), ("alive_at_peak", "peak_bytes")):
            storages = {t["storage"]: t["bytes"] for t in tensors if t[key]}
            assert sum(storages.values()) == row["memory"][total]


def test_schemas_of_files_are_those_of_the_types_and_take_the_catalogue():
    directory = configs_directory()
    found = schemas()
    for name, wanted in found.items():
        stored = json.loads((directory / "schemas" / f"{name}.schema.json").read_text())
        assert stored == wanted, "python -m mla_cost.checks.schema writes them anew"
        for file in sorted((directory / f"{name}s").glob("*.yaml"))[::5]:
            jsonschema.Draft7Validator(wanted).validate(json.loads(json.dumps(load_mapping(file))))
    plan = jsonschema.Draft7Validator(found["plan"])
    assert plan.is_valid({"model": "kimi-k2", "seq_len": "128k", "device": "h100-80gb", "other_memory": "2GiB"})
    for wrong in ({"tp": "two"}, {"kernle": "flash"}, {"norm": "fusd"}, {"dims": {"hiden": 1}}, {"seq_len": "many"}):
        assert not plan.is_valid(wrong)
    assert set(found["plan"]["properties"]) == set(PlanSettings.model_fields)
