"""What changes no figure says so in a note: each is tried, and the figures are those of the plan without it."""

from __future__ import annotations

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
    ({"profile": "megatron", "names": "held"}, "names held: no effect (profile megatron has its own code)"),
    ({"profile": "megatron", "attention_layout": "bnsd"}, "attention_layout bnsd: no effect (kernel flash is one call"),
]


def told(**changes: Any) -> Result:
    asked = mla_cost.plan_file("moonlight-8-h100") | {"form": "explicit", "kernel": "flash"}
    return mla_cost.plan(**asked | changes)["explicit"]


@pytest.mark.parametrize(("stated", "note"), STATED, ids=[note.partition(":")[0] for _, note in STATED])
def test_a_setting_without_effect_is_told(stated, note):
    plain = told(profile=stated.get("profile", "reference"))
    changed = told(**stated)
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
    assert not any("no effect" in note or "priced as asked" in note for note in told(**stated).notes)


@pytest.mark.parametrize("sharding", ["zero1", "zero2"])
def test_a_way_to_shard_that_the_profile_has_not_is_told(sharding):
    note = f"sharding {sharding} is priced as asked, but profile megatron trains with ddp or distributed only"
    assert note in told(profile="megatron", sharding=sharding).notes


def test_a_lever_of_stages_leaves_stated_ends_out():
    """27 layers, 13 of them in the first of 2 stages; as even as can be over 4 stages they are 7, 7, 7 and 6."""
    asked = mla_cost.plan_file("moonlight-8-h100") | {"form": "explicit", "pp": 2, "ep": 4, "first_layers": 13}
    verdict = mla_cost.levers(**asked)["explicit"].verdict
    assert verdict is not None
    (lever,) = [lever for lever in verdict.levers if lever.change.startswith("pp 2 -> 4")]
    assert lever.status == "fits"
    assert lever.change.endswith("no first_layers, pipeline_layout Ettttttt|(ttttttt|)*2ttttttL")
