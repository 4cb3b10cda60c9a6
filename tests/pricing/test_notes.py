"""What changes no figure says so in a note: each is tried, and the figures are those of the plan without it."""

from __future__ import annotations

import re
from typing import Any

import pytest

import mla_cost
from mla_cost.results import Result

STATED: list[tuple[dict[str, Any], str]] = [
    ({"attention_layout": "bnsd"}, "attention_layout bnsd: no effect (kernel flash is one call, with its own)"),
    ({"softmax_dtype": "fp32"}, "softmax_dtype fp32: no effect (kernel flash is one call, with its own)"),
    ({"mask": "tensor"}, "mask tensor: no effect (kernel flash is one call, with its own)"),
    ({"loss_chunks": 3}, "loss_chunks 3: no effect (only cross_entropy chunked cuts the loss into pieces)"),
    (
        {"facts": {"other_layer_bytes": 5}},
        "facts.other_layer_bytes: no effect (moonlight-16b-a3b has no layers without",
    ),
    (
        {"facts": {"indexer_layer_bytes": 5}},
        "facts.indexer_layer_bytes: no effect (moonlight-16b-a3b has no layers with",
    ),
    ({"profile": "megatron", "norm": "composite"}, "norm composite: no effect (profile megatron has fused only)"),
    ({"profile": "megatron", "mask": "tensor"}, "mask tensor: no effect (profile megatron has none only)"),
    ({"profile": "megatron", "moe_style": "torchtitan"}, "moe_style torchtitan: no effect (profile megatron has fused"),
    ({"profile": "megatron", "names": "held"}, "names held: no effect (profile megatron has its own code)"),
    ({"profile": "megatron", "attention_layout": "bnsd"}, "attention_layout bnsd: no effect (kernel flash is one call"),
]


def reported(**changes: Any) -> Result:
    asked = mla_cost.plan_file("moonlight-8-h100") | {"form": "explicit", "kernel": "flash"}
    return mla_cost.plan(**asked | changes)["explicit"]


@pytest.mark.parametrize(
    ("model", "remat", "without"),
    [
        ("youtu-llm-2b", "moe", "moe"),
        ("youtu-llm-2b", "core_attn+moe+shared_experts", "moe, shared_experts"),
        ("minicpm3-4b", "shared_experts", "shared_experts"),
        ("mistral-small-4-119b", "mlp", "mlp"),
        ("moonlight-16b-a3b", "mlp+moe", ""),
        ("moonlight-16b-a3b", "mlp+shared_experts", ""),
        ("moonlight-16b-a3b", "mlp+moe+shared_experts", "shared_experts"),  # moe runs them again already
    ],
)
def test_recomputing_a_part_that_no_layer_has_is_told(model, remat, without):
    names = [name for name in without.split(", ") if name]
    asked = {"model": model, "device": None, "form": "explicit", "seq_len": 2048}
    row = mla_cost.plan(**asked, remat=remat).results[0]
    told_of = [note.split(":")[0].removeprefix("remat ") for note in row.notes if re.match("remat .*: no effect", note)]
    assert told_of == names
    left = "+".join(name for name in remat.split("+") if name not in names) or "none"
    assert mla_cost.plan(**asked, remat=left).results[0].memory == row.memory


@pytest.mark.parametrize(
    ("model", "stated", "note"),
    [
        ("moonlight-16b-a3b", {"remat": "full+moe"}, "remat moe: no effect (remat full runs it again already)"),
        (
            "moonlight-16b-a3b",
            {"remat": "moe+shared_experts"},
            "remat shared_experts: no effect (remat moe runs it again already)",
        ),
        ("moonlight-16b-a3b", {"mtp": 1}, "mtp 1: priced as asked; moonlight-16b-a3b is published with 0"),
        ("deepseek-v3", {"mtp": 2}, "mtp 2: priced as asked; deepseek-v3 is published with 1"),
    ],
)
def test_what_another_part_holds_and_modules_above_those_published_are_told(model, stated, note):
    (row,) = mla_cost.plan(model=model, device=None, form="explicit", seq_len=2048, **stated).results
    assert note in row.notes


@pytest.mark.parametrize(("model", "told_of"), [("youtu-llm-2b", False), ("moonlight-16b-a3b", True)])
def test_a_dense_model_hears_nothing_of_routers(model, told_of):
    (row,) = mla_cost.plan(model=model, device=None, form="explicit", seq_len=2048).results
    assert any("router" in note for note in row.notes) is told_of
    assert not any("multi-token" in note for note in row.notes)


def test_a_note_says_what_a_router_and_rows_op_by_op_keep_more():
    """2Kh + 12K + 4 and 4Kh + 4h + 12K + 4 bytes a token, and 4eh: h 2048, e 64, K 6 of Moonlight (decision 21)."""
    asked: dict[str, Any] = {"model": "moonlight-16b-a3b", "device": None, "form": "explicit", "kernel": "flash"}
    asked |= {"seq_len": 2048}
    fused, titan, other = (
        mla_cost.plan(**asked, moe_style=style).results[0] for style in ("fused", "torchtitan", "transformers")
    )
    more = [2048 * (2 * 6 * 2048 + 76), 2048 * (28 * 2048 + 76) + 4 * 64 * 2048]
    (note,) = (text for text in fused.notes if "router" in text)
    assert f"{more[0] / 2**30:,.2f} GiB as torchtitan has it, {more[1] / 2**30:,.2f} GiB as transformers has it" in note
    layers = 26  # of 27, the first is dense
    assert fused.memory.saved_bytes is not None
    saved = [row.memory.saved_bytes for row in (titan, other)]
    assert saved == [fused.memory.saved_bytes + layers * size for size in more]
    assert not any("router" in text for row in (titan, other) for text in row.notes)
    megatron = mla_cost.plan(**asked, profile="megatron").results[0]
    assert not any("router and rows" in text for text in megatron.notes)
    dense: dict[str, Any] = {"model": "youtu-llm-2b", "device": None, "form": "explicit", "seq_len": 2048}
    assert "moe_style torchtitan: no effect (youtu-llm-2b has no experts)" in [
        *mla_cost.plan(**dense, moe_style="torchtitan").results[0].notes
    ]


@pytest.mark.parametrize(("stated", "note"), STATED, ids=[note.partition(":")[0] for _, note in STATED])
def test_a_setting_without_effect_is_told(stated, note):
    plain = reported(profile=stated.get("profile", "reference"))
    changed = reported(**stated)
    assert next(text for text in changed.notes if text not in plain.notes).startswith(note)
    assert (changed.memory, changed.communication, changed.flops) == (plain.memory, plain.communication, plain.flops)


@pytest.mark.parametrize(
    "stated",
    [
        {},
        {"kernel": "eager", "mask": "tensor", "attention_layout": "bnsd", "softmax_dtype": "fp32"},
        {"norm": "composite"},
        {"cross_entropy": "chunked", "loss_chunks": 3},
        {"sharding": "zero1"},
        {"profile": "megatron"},
    ],
    ids=str,
)
def test_a_setting_with_an_effect_is_not(stated):
    assert not any("no effect" in note or "priced as asked" in note for note in reported(**stated).notes)


@pytest.mark.parametrize("sharding", ["zero1", "zero2"])
def test_a_way_to_shard_that_the_profile_has_not_is_told(sharding):
    note = f"sharding {sharding} is priced as asked, but profile megatron trains with ddp or distributed only"
    assert note in reported(profile="megatron", sharding=sharding).notes


def test_a_lever_of_stages_leaves_stated_ends_out():
    """27 layers, 13 of them in the first of 2 stages; as even as can be over 4 stages they are 7, 7, 7 and 6."""
    asked = mla_cost.plan_file("moonlight-8-h100") | {"form": "explicit", "pp": 2, "ep": 4, "first_layers": 13}
    verdict = mla_cost.levers(**asked)["explicit"].verdict
    assert verdict is not None
    (lever,) = [lever for lever in verdict.levers if lever.change.startswith("pp 2 -> 4")]
    assert lever.status == "fits"
    assert lever.change.endswith("no first_layers, pipeline_layout Ettttttt|(ttttttt|)*2ttttttL")
