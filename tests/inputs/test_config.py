"""Models and devices as data: what is refused, in which words, and what the derived facts say."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from mla_cost.errors import InputError
from mla_cost.inputs.config import AttentionDims, DeviceConfig, ModelConfig, ReserveItem, validated

DIMS = {
    "hidden": 7168,
    "heads": 128,
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
}
MODEL: dict[str, Any] = {"name": "m", "title": "M", "dims": DIMS, "num_layers": 61, "num_mla_layers": 61}
FACT = {"value": 80, "verified": True, "source": "sheet"}
CONTEXT = {"name": "context", "bytes": 500, "per": "process", "verified": True, "source": "sheet"}
BUFFERS = {"name": "buffers", "bytes": 40, "per": "communicator", "verified": True, "source": "sheet"}
DEVICE: dict[str, Any] = {
    "name": "d",
    "title": "D",
    "vendor": "nvidia",
    "family": "cuda",
    "arch": "sm90",
    "marketing_gb": FACT,
    "runtime_total_bytes": {**FACT, "value": 85_520_809_984},
    "memory_bandwidth_gb_s": FACT,
    "peak_bf16_dense_tflops": {**FACT, "value": 989.5},
    "intra_node_gb_s": FACT,
    "intra_node_topology": "all to all",
    "inter_node_gb_s": FACT,
    "devices_per_node": {**FACT, "value": 8},
    "reserve": [CONTEXT, {**BUFFERS, "by_group_size": {2: 10, 4: 30}}],
    "sources": {"sheet": "a data sheet"},
}
WIDTHS = sorted(DIMS)


def model_refusal(**changes: Any) -> str:
    return refusal(ModelConfig, {**MODEL, **changes})


def device_refusal(**changes: Any) -> str:
    return refusal(DeviceConfig, {**DEVICE, **changes})


def refusal(kind: Any, data: dict[str, Any]) -> str:
    with pytest.raises(InputError) as caught:
        validated(kind, data, file="f.yaml")
    message = str(caught.value)
    assert message.startswith("f.yaml: ")
    assert "\n" not in message
    return message


def test_a_model_is_frozen_and_hashable_in_its_dims() -> None:
    model = validated(ModelConfig, MODEL)
    assert model.dims == AttentionDims(**DIMS)
    assert hash(model.dims) == hash(AttentionDims(**DIMS))
    with pytest.raises(ValidationError):
        model.dims.heads = 3


def test_a_query_without_a_latent_is_stated_not_left_out() -> None:
    assert validated(AttentionDims, {**DIMS, "q_lora_rank": None}).q_lora_rank is None
    absent = {key: value for key, value in DIMS.items() if key != "q_lora_rank"}
    assert "dims.q_lora_rank: this key is missing" in model_refusal(dims=absent)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize(
    ("value", "words"),
    [
        (-2, "out of range, not -2; allowed: "),
        (2**40, "out of range, not 1099511627776; allowed: at most "),
        (True, "must be a whole number, not true"),
        ("128", "must be a whole number, not '128'"),
        (128.0, "must be a whole number, not 128.0"),
        (float("nan"), "must be a whole number, not nan"),
        ([128], "must be a whole number, not a list"),
        ({}, "must be a whole number, not a mapping"),
    ],
)
def test_every_width_is_a_bounded_whole_number(width: str, value: object, words: str) -> None:
    assert f"dims.{width}: {words}" in model_refusal(dims={**DIMS, width: value})


@pytest.mark.parametrize("width", [width for width in WIDTHS if width != "qk_rope_head_dim"])
def test_only_the_rotary_width_may_be_zero(width: str) -> None:
    assert f"dims.{width}: out of range, not 0; allowed: at least 1" in model_refusal(dims={**DIMS, width: 0})
    assert validated(AttentionDims, {**DIMS, "qk_rope_head_dim": 0}).qk_rope_head_dim == 0


@pytest.mark.parametrize(("width", "most"), [("hidden", 2**20), ("heads", 65536), ("kv_lora_rank", 2**16)])
def test_the_bounds_themselves_are_allowed(width: str, most: int) -> None:
    assert getattr(validated(AttentionDims, {**DIMS, width: most}), width) == most
    assert f"at most {most}" in model_refusal(dims={**DIMS, width: most + 1})


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"num_layer": 61}, "num_layer: unknown key; did you mean num_layers?"),
        ({"dims": {**DIMS, "num_heads": 128}}, "dims.num_heads: unknown key; did you mean heads?"),
        ({"dims": 5}, "dims: must be a mapping, not 5"),
        (
            {"dims": {**DIMS, "qk_rope_head_dim": 63}},
            "dims.qk_rope_head_dim: out of range, not 63; allowed: a multiple",
        ),
        ({"num_layers": 0}, "num_layers: out of range, not 0; allowed: at least 1"),
        ({"num_layers": 4097}, "num_layers: out of range, not 4097; allowed: at most 4096"),
        ({"vocab_size": 2**24 + 1}, "vocab_size: out of range"),
        ({"tied_embeddings": "yes"}, "tied_embeddings: must be true or false, not 'yes'"),
        ({"title": 7}, "title: must be text, not 7"),
        ({"sources": "one"}, "sources: must be a list, not 'one'"),
        ({"parameters": {"total": 1}}, "parameters.total: unknown value: 'total'; allowed: 'total_reported'"),
        ({"parameters": {"exact": -1}}, "parameters.exact: out of range, not -1; allowed: at least 0"),
        ({"indexer": {"index_topk": 0}}, "indexer.index_topk: out of range, not 0"),
        ({"mla_layer_indices": [1, 2]}, "mla_layer_indices lists 2 layers, num_mla_layers is 61"),
        ({"mla_layer_indices": [61], "num_mla_layers": 1}, "names layer 61, num_layers is 61"),
    ],
)
def test_bad_models(changes: dict[str, Any], words: str) -> None:
    assert words in model_refusal(**changes)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"family": "cudda"}, "family: unknown value: 'cudda'; allowed: 'cuda', 'rocm', 'ascend' or 'cpu'"),
        ({"marketing_gb": 80}, "marketing_gb: must be a mapping, not 80"),
        ({"marketing_gb": {**FACT, "value": "80 GB"}}, "marketing_gb.value: must be a whole number, not '80 GB'"),
        ({"marketing_gb": {**FACT, "value": -1}}, "marketing_gb.value: out of range, not -1"),
        ({"marketing_gb": {**FACT, "value": True}}, "marketing_gb.value: must be a whole number, not true"),
        ({"marketing_gb": {**FACT, "valeu": 1}}, "marketing_gb.valeu: unknown key; did you mean value?"),
        ({"marketing_gb": {"value": 80, "verified": True}}, "marketing_gb.source: this key is missing"),
        ({"marketing_gb": {**FACT, "source": "hearsay"}}, "marketing_gb: the source 'hearsay' is not listed"),
        ({"runtime_total_bytes": {**FACT, "value": 1.5}}, "runtime_total_bytes: a byte count is a whole number"),
        (
            {"reserve": [{**CONTEXT, "per": "node"}]},
            "reserve, entry 1: per: unknown value: 'node'; allowed: 'process' or",
        ),
        ({"reserve": [{**CONTEXT, "byte": 3}]}, "reserve, entry 1: byte: unknown key; did you mean bytes?"),
        ({"reserve": [{**CONTEXT, "source": "x"}]}, "reserve.context: the source 'x' is not listed under sources"),
        ({"further": {"cores": {**FACT, "value": [1, -2]}}}, "further.cores.value: "),
    ],
)
def test_bad_devices(changes: dict[str, Any], words: str) -> None:
    assert words in device_refusal(**changes)


def test_visible_memory_is_what_torch_shows_or_says_that_it_is_not() -> None:
    shown = {**FACT, "value": 85_020_639_232}
    assert validated(DeviceConfig, {**DEVICE, "framework_visible_bytes": shown}).visible_bytes.integer == shown["value"]
    fallback = validated(DeviceConfig, DEVICE).visible_bytes
    assert fallback.integer == 85_520_809_984
    assert not fallback.verified
    assert "what torch shows was not found" in (fallback.note or "")


def test_a_fact_that_is_no_whole_number_says_so() -> None:
    with pytest.raises(ValueError, match=r"not a whole number: 989\.5"):
        _ = validated(DeviceConfig, DEVICE).peak_bf16_dense_tflops.integer


def test_reserve_counts_once_a_process_or_once_a_communicator() -> None:
    context, buffers = validated(DeviceConfig, DEVICE).reserve
    assert [context.bytes_for(size) for size in (1, 8)] == [500, 500]
    assert [buffers.bytes_for(size) for size in (1, 2, 3, 4, 5, 1024)] == [0, 10, 30, 30, 40, 40]
    assert ReserveItem(**BUFFERS).bytes_for(2) == 40


def test_a_field_is_verified_unless_it_is_named_as_not() -> None:
    model = validated(ModelConfig, {**MODEL, "verified": True, "unverified_fields": ["v_head_dim"]})
    assert model.is_verified("heads")
    assert not model.is_verified("v_head_dim")
    assert not validated(ModelConfig, MODEL).is_verified("heads")


def test_a_prefix_names_the_place_of_the_mapping() -> None:
    with pytest.raises(InputError, match=r"^--set dims\.heads: out of range, not 0"):
        validated(AttentionDims, {**DIMS, "heads": 0}, prefix="--set dims")
