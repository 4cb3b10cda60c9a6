"""The model scope at many points: equal to `plan` to the byte, refusals as rows, exact below the fence."""

from __future__ import annotations

from typing import Any

import hypothesis
from hypothesis import strategies as st

from mla_cost import catalog
from mla_cost.composing import price
from mla_cost.composing.composed import require_equal
from mla_cost.settings import PlanSettings

MODELS = ("deepseek-v3", "deepseek-v2-lite", "moonlight-16b-a3b", "kimi-k2", "minicpm3-4b")
DEVICES = ("910b-64gb", "a100-80gb", "h100-80gb", "mi300x", None)
BASE = PlanSettings(scope="model", kernel="auto")


def priced(columns: dict[str, Any], model: str = "deepseek-v3", device: str | None = "h100-80gb", **given: Any):
    form = given.pop("form", "explicit")
    settings = BASE.model_copy(update=given)
    where = None if device is None else catalog.device(device)
    return price(catalog.model(model), where, form, settings, columns)


def require_plans(found):
    for index in range(len(found)):
        require_equal(index, found.row(index), found._expected(index))


def pick(*values):
    return st.sampled_from(values)


SIZES = {  # most of these divide: a point that is refused checks little
    "seq_len": pick(64, 4096, 16384, 131072, 2**24, 4104, 2),
    "micro_batch": pick(1, 2, 3),
    "sp": pick(1, 1, 2, 8, 3),
    "tp": pick(1, 2, 4),
    "pp": pick(1, 1, 0, -1, 5),  # 0: the least that divides the layers; -1: the most
    "ep": pick(1, 1, 2, 8, 64),
    "etp": pick(1, 1, 1, 1, 2),
    "dp": pick(1, 2, 7),  # times ep, so that experts divide
    "micro_batches": pick(1, 2, 8, 30, 1000),
    "virtual_stages": pick(1, 1, 1, 3),
    "vocab_multiple": pick(128, 1),
    "imbalance_percent": pick(100, 137),
}
WAYS = {
    "sharding": pick("ddp", "distributed", "zero1", "zero2"),
    "gradient_dtype": pick("fp32", "bf16"),
    "moment_dtype": pick("fp32", "bf16"),
    "remat": pick("none", "full", "core_attn", "mlp+core_attn", "moe", "layernorm"),
    "kernel": pick("auto", "eager", "flash", "eager-bmm", "npu-fusion"),
    "dtype": pick("bf16", "bf16", "fp32"),
    "scheme": pick(None, None, "kv-gather"),
    "dispatcher": pick("alltoall", "alltoall", "alltoall", "deepep"),
    "main_weights": pick("fp32", "fp32", "remainders"),
    "causal": pick(True, False),
}
UNEVEN = st.fixed_dictionaries(
    {}, optional={"first_layers": pick(1, 2, 4), "last_layers": pick(0, 1, 3), "other_memory": pick(0, 2**31)}
)
FIXED = st.fixed_dictionaries(
    {"form": pick("explicit", "absorbed", "laga"), "model": pick(*MODELS), "device": pick(*DEVICES)}
)
IMPLEMENTED = {
    "shared_overlap": pick("on"),
    "cross_entropy": pick("te-fp32", "te-in-place"),
    "rope_fusion": pick("off"),
}


def points(ways: dict[str, Any]):
    return st.lists(st.fixed_dictionaries(SIZES | ways), min_size=1, max_size=6)


def columns_of(rows, model):
    facts = catalog.model(model)
    layers = facts.num_layers or 1
    least = next(pp for pp in range(2, layers + 1) if layers % pp == 0)
    found = []
    for row in rows:
        ep = row["ep"] if facts.num_routed_experts else 1
        pp = {0: least, -1: layers}.get(row["pp"], row["pp"])
        found.append(row | {"ep": ep, "dp": row["dp"] * ep, "pp": pp})
    return {name: [row[name] for row in found] for name in rows[0]}


def equal_to_plans(rows, model, **fixed):
    require_plans(priced(columns_of(rows, model), model, **fixed))


@hypothesis.settings(max_examples=25)
@hypothesis.given(rows=points(WAYS), fixed=FIXED, uneven=UNEVEN)
def test_equal_to_plan_to_the_byte(rows, fixed, uneven):
    equal_to_plans(rows, **fixed, **uneven)


MEGATRON = WAYS | {
    "kernel": pick("flash"),
    "dtype": pick("bf16"),
    "scheme": pick(None),
    "dispatcher": pick("alltoall", "deepep"),
    "remat": pick("none", "full", "layernorm", "core_attn", "mla_up_proj+moe_act"),
}


@hypothesis.settings(max_examples=15)
@hypothesis.given(rows=points(MEGATRON), model=pick(*MODELS), own=st.fixed_dictionaries({}, optional=IMPLEMENTED))
def test_the_profile_of_an_implementation_too(rows, model, own):
    equal_to_plans(rows, model=model, profile="megatron", **own)
