"""Parameter counts against published and checkpoint counts, and against the sums written out by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from mla_cost.cli import catalogue
from mla_cost.errors import InputError
from mla_cost.inputs import catalog
from mla_cost.inputs.config import AttentionDims, ModelConfig
from mla_cost.weights.parameters import (
    indexer_weights,
    layer_kinds,
    layer_weights,
    mtp_kind,
    mtp_weights,
    parameters,
    refusal,
    total_of,
)

DATA = Path(__file__).parents[2].parent / "shared" / "data" / "mla_models.yaml"
COUNTABLE = [name for name in catalog.model_names() if refusal(catalog.model(name)) is None]
DERIVED = {
    "deepseek-v3": 671_026_419_200,
    "deepseek-v2": 235_741_434_880,
    "deepseek-v2-lite": 15_706_484_224,
    "kimi-k2": 1_026_408_232_448,
    "glm-4.7-flash": 29_943_393_920,
    "moonlight-16b-a3b": 15_960_110_208,
    "longcat-flash-chat": 560_664_980_480,
    "minicpm3-4b": 4_073_875_968,
    "youtu-llm-2b": 1_961_560_064,
    "sarvam-105b": 106_031_767_424,
}


@pytest.mark.parametrize(("name", "count"), DERIVED.items())
def test_published_dims_give_the_derived_count(name: str, count: int) -> None:
    assert parameters(catalog.model(name)).main_model == count


@pytest.mark.skipif(not DATA.is_file(), reason="the data files are not beside this checkout")
def test_every_derived_count_of_the_data_is_reproduced() -> None:
    stated = {entry["name"]: entry["params"] for entry in yaml.safe_load(DATA.read_text(encoding="utf-8"))["models"]}
    derived = {name: params for name, params in stated.items() if params["derived_main_model"] is not None}
    assert len(derived) > 20
    for name, params in derived.items():
        counted = parameters(catalog.model(name))
        assert counted.main_model == params["derived_main_model"], name
        assert params["derived_with_indexer"] in (None, counted.total), name


def test_deepseek_v3_written_out() -> None:
    h, n, q, c, k, r, v = 7168, 128, 1536, 512, 128, 64, 128
    attention = h * q + q + q * n * (k + r) + h * (c + r) + c + c * n * (k + v) + n * v * h
    expert = 3 * h * 2048
    dense = 2 * h + attention + 3 * h * 18432
    moe = 2 * h + attention + h * 256 + 256 + 256 * expert + expert
    assert attention == 187_107_328
    counted = parameters(catalog.model("deepseek-v3"))
    assert counted.total == 2 * 129280 * h + h + 3 * dense + 58 * moe == 671_026_419_200
    assert counted.active == counted.total - 58 * (256 - 8) * expert == 37_552_297_472
    assert counted.mtp == 3 * h + 2 * h * h + moe == 11_610_068_224
    assert counted.mtp_with_copies == counted.mtp + 2 * 129280 * h == 13_463_426_304


def test_longcat_holds_two_attentions_and_two_mlps_beside_its_moe() -> None:
    h, n, q, c, k, r, v = 6144, 64, 1536, 512, 128, 64, 128
    attention = h * q + q + q * n * (k + r) + h * (c + r) + c + c * n * (k + v) + n * v * h
    block = 2 * (2 * h + attention + 3 * h * 12288) + (512 + 256) * (h + 1) + 512 * 3 * h * 2048
    assert parameters(catalog.model("longcat-flash-chat")).total == 2 * 131072 * h + h + 28 * block


def test_the_indexer_written_out() -> None:
    glm = catalog.model("glm-5")
    h, q, heads, width = 6144, 2048, 32, 128
    assert (glm.dims.hidden, glm.dims.q_lora_rank) == (h, q)
    each = q * heads * width + h * width + 2 * width + h * heads
    assert total_of(indexer_weights(glm)) == each
    counted = parameters(glm)
    assert counted.indexer == 78 * each == 743_911_218_432 - 743_180_209_920
    assert parameters(catalog.model("glm-5.2")).indexer == 21 * each


CHECKPOINTS: dict[str, tuple[int, dict[str, int]]] = {
    "deepseek-v2-lite": (15_706_484_224, {}),
    "deepseek-v3.1": (
        684_531_386_000,
        {"MTP modules with their own embedding and head": 13_463_426_304, "FP8 block scales": 41_540_496},
    ),
    "kimi-k2": (
        1_026_470_731_056,
        {"FP8 block scales": 62_495_192, "inv_freq of the rotary embedding": 3_416},
    ),
    "glm-4.7-flash": (31_221_488_576, {"MTP modules with their own embedding and head": 1_278_094_656}),
}


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_checkpoints_are_explained_to_the_last_element(name: str) -> None:
    exact, parts = CHECKPOINTS[name]
    counted = parameters(catalog.model(name))
    assert dict(counted.remainder) == {**parts, "not explained": 0}
    assert counted.total + sum(parts.values()) == exact


def test_fp8_scales_of_deepseek_written_out() -> None:
    def tiles(rows: int, columns: int) -> int:
        return -(-rows // 128) * -(-columns // 128)

    h, n = 7168, 128
    down = tiles(1536, h) + tiles(576, h)
    attention = down + tiles(n * 192, 1536) + tiles(n * 256, 512) + tiles(h, n * 128)
    expert = 2 * tiles(2048, h) + tiles(h, 2048)
    dense, moe = 2 * tiles(18432, h) + tiles(h, 18432), 257 * expert
    assert 3 * (attention + dense) + (58 + 1) * (attention + moe) == 41_540_496


@pytest.mark.parametrize("name", COUNTABLE)
def test_items_sum_to_the_total(name: str) -> None:
    counted = parameters(catalog.model(name))
    assert sum(item.elements for item in counted.items) == counted.total == counted.main_model + counted.indexer
    assert counted.active <= counted.total


@pytest.mark.parametrize("name", COUNTABLE)
def test_counts_lie_near_the_reported_ones(name: str) -> None:
    model = catalog.model(name)
    reported = model.parameters.get("total_reported")
    if reported is not None:
        assert abs(parameters(model).total - reported) < 0.07 * reported


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("kimi-linear-48b-a3b", "20 of its 27 layers hold no MLA block (hybrid_mla_kda)"),
        ("ling-2.6-flash", "28 of its 32 layers hold no MLA block"),
        ("a.x-k2", "its dims do not describe gated norms"),
        ("dots3-note-prev", "its source does not state num_dense_layers"),
        ("kimi-k3", "69 of its 93 layers hold no MLA block"),
    ],
)
def test_what_cannot_be_counted_is_refused_by_name_with_the_way_out(name: str, said: str) -> None:
    with pytest.raises(InputError) as caught:
        parameters(catalog.model(name))
    assert str(caught.value).startswith(f"{name} cannot be counted: ")
    assert said in str(caught.value)
    assert "; state " in str(caught.value)


def test_the_users_figures_answer_a_refusal() -> None:
    linear = catalog.model("kimi-linear-48b-a3b")
    counted = parameters(linear.model_copy(update={"other_layer_parameters": 1_000}))
    without = parameters(linear.model_copy(update={"other_layer_parameters": 0}))
    assert counted.total - without.total == 20 * 1_000
    gated = catalog.model("a.x-k2")
    gap = gated.model_copy(update={"uncounted_parameters": 7}), gated.model_copy(update={"uncounted_parameters": 0})
    assert parameters(gap[0]).total - parameters(gap[1]).total == 48 * 7


def test_a_missing_fact_is_named() -> None:
    model = catalog.model("deepseek-v3").model_copy(update={"router_correction_bias": None, "vocab_size": None})
    assert "does not state vocab_size, router_correction_bias" in (refusal(model) or "")


def test_layers_of_a_dense_tied_model() -> None:
    dims = AttentionDims(
        hidden=8, heads=2, q_lora_rank=None, kv_lora_rank=4, qk_nope_head_dim=4, qk_rope_head_dim=2, v_head_dim=4
    )
    model = ModelConfig(
        name="tiny", title="tiny", dims=dims, num_layers=2, num_mla_layers=2, intermediate_size=16, vocab_size=10,
        tied_embeddings=True,
    )  # fmt: skip
    layer = 2 * 8 + 8 * 2 * 6 + 8 * 6 + 4 + 4 * 2 * 8 + 2 * 4 * 8 + 3 * 8 * 16
    assert [total_of(layer_weights(model, kind)) for kind in layer_kinds(model)] == [layer, layer]
    assert parameters(model).total == 10 * 8 + 8 + 2 * layer
    assert total_of(mtp_weights(model)) == 3 * 8 + 2 * 8 * 8 + layer


def shown(capsys: pytest.CaptureFixture[str], name: str) -> dict[str, Any]:
    catalogue.show(name, "json")
    found: dict[str, Any] = json.loads(capsys.readouterr().out)["model"]["parameters"]
    return found


def test_show_carries_the_count_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    found = shown(capsys, "deepseek-v3")
    assert (found["total"], found["active"], found["refusal"]) == (671_026_419_200, 37_552_297_472, None)
    assert found["total_reported"] == 671_000_000_000
    assert sum(item["parameters"] for item in found["items"]) == found["total"]
    assert shown(capsys, "kimi-k2")["remainder"][0] == {"name": "FP8 block scales", "parameters": 62_495_192}
    refused = shown(capsys, "kimi-k3")
    assert refused["total"] is None
    assert "hold no MLA block" in refused["refusal"]


def test_show_prints_total_and_active(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    catalogue.show("deepseek-v3")
    assert "parameters: 671,026,419,200 in all, 37,552,297,472 active per token" in capsys.readouterr().out


def test_a_module_with_an_indexer_has_mla():
    """GLM-5.3-Flash: 45 layers of which the last has no MLA; its module is that of DeepSeek-V3, as sglang runs it."""
    config = catalog.model("glm-5.3-flash")
    assert (layer_kinds(config)[-1].attention, layer_kinds(config)[-1].indexer) == (0, False)
    assert mtp_kind(config)[:3] == (1, True, True)
