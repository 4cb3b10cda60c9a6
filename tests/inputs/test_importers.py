"""What a published config.json can spring on its reader, one test per trap."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

import mla_cost
from mla_cost.errors import InputError
from mla_cost.inputs import catalog
from mla_cost.inputs.importers import huggingface
from mla_cost.inputs.importers.huggingface import model_from_config

FIXTURES = Path(__file__).parents[1] / "fixtures" / "hf"
PUBLISHED = Path(__file__).parents[2].parent / "shared" / "data" / "hf_configs"
DIMS = ("hidden_size", "num_attention_heads", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
CATALOGUE_NAMES = {
    "deepseek-ai/DeepSeek-V2-Lite (training config with the same keys)": "deepseek-v2-lite",
    "nvidia/DeepSeek-V3.1-NVFP4": "deepseek-v3.1",
    "nvidia/DeepSeek-V3.2-NVFP4": "deepseek-v3.2",
    "nvidia/Kimi-K2.6-NVFP4": "kimi-k2.6",
    "nvidia/Kimi-K2.7-Code-NVFP4": "kimi-k2.7-code",
    "zai-org/GLM-5-FP8": "glm-5",
}


def fixture(name: str) -> dict[str, Any]:
    config: dict[str, Any] = json.loads((FIXTURES / f"{name}.json").read_text(encoding="utf-8"))
    return config


def changed(**changes: Any) -> dict[str, Any]:
    return {**fixture("deepseek_like"), **changes}


def without(*keys: str) -> dict[str, Any]:
    return {key: value for key, value in fixture("deepseek_like").items() if key not in keys}


def read(config: dict[str, Any]) -> Any:
    return model_from_config(config, file="some/Model-X/config.json")


def refusal(config: dict[str, Any]) -> str:
    with pytest.raises(InputError) as caught:
        read(config)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_the_usual_spelling_gives_every_fact() -> None:
    model = read(fixture("deepseek_like"))
    assert model.dims == catalog.model("deepseek-v3").dims
    assert (model.num_layers, model.num_mla_layers, model.num_dense_layers, model.num_mtp_layers) == (61, 61, 3, 1)
    assert (model.num_routed_experts, model.num_shared_experts, model.num_experts_per_token) == (256, 1, 8)
    assert (model.vocab_size, model.tied_embeddings, model.dtype) == (129280, False, "bfloat16")
    assert model.name == "Model-X"
    assert model.sources == ("some/Model-X/config.json",)


def test_no_query_rank_means_a_query_straight_from_hidden() -> None:
    stated = read(changed(q_lora_rank=None))
    assert (stated.dims.q_lora_rank, "q_lora_rank" in stated.assumed) == (None, False)
    nested = read({"model_type": "some_vl", "text_config": changed(q_lora_rank=None)})
    assert nested.dims.q_lora_rank is None
    absent = read({**without("q_lora_rank"), "model_type": "of_the_future"})
    assert absent.dims.q_lora_rank is None
    assert absent.assumed["q_lora_rank"] == (
        "q_lora_rank is not in the file; taken: no query latent, the query comes straight from hidden"
    )


@pytest.mark.parametrize("change", [{}, {"v_head_dim": None}], ids=["missing", "null"])
def test_minicpm3_takes_its_value_width_from_hidden_and_heads(change: dict[str, Any]) -> None:
    model = read({**fixture("minicpm3"), **change})
    assert model.dims.v_head_dim == 2560 // 40
    assert model.dims == catalog.model("minicpm3-4b").dims


def test_another_models_missing_value_width_is_not_guessed() -> None:
    assert "v_head_dim: deepseek_v3 does not state this width" in refusal(changed(v_head_dim=None))


def test_minicpm3_whose_hidden_does_not_divide_is_refused() -> None:
    assert "v_head_dim" in refusal({**fixture("minicpm3"), "hidden_size": 2561})


def test_heads_times_value_width_need_not_be_hidden() -> None:
    dims = read(changed(hidden_size=2048, num_attention_heads=20, v_head_dim=256)).dims
    assert (dims.hidden, dims.heads * dims.v_head_dim) == (2048, 5120)


def test_no_rotary_part() -> None:
    assert read(changed(qk_rope_head_dim=0)).dims.qk_rope_head_dim == 0


@pytest.mark.parametrize("key", ["text_config", "language_config"])
def test_a_nested_text_model_is_found(key: str) -> None:
    inner = without("torch_dtype")
    vision = {"hidden_size": 1152, "num_hidden_layers": 27}
    model = read({"model_type": "some_vl", "dtype": "bfloat16", "hidden_size": 1, key: inner, "vision_config": vision})
    assert model.dims == catalog.model("deepseek-v3").dims
    assert (model.dtype, model.model_type, model.num_layers) == ("bfloat16", "deepseek_v3", 61)


def test_a_nested_text_model_that_is_no_mapping() -> None:
    assert "text_config: must be a mapping, not 3" in refusal({"text_config": 3})


@pytest.mark.parametrize("key", ["dtype", "torch_dtype"])
def test_both_spellings_of_dtype(key: str) -> None:
    assert read({**without("torch_dtype"), key: "float16"}).dtype == "float16"


def test_the_spellings_of_pangu() -> None:
    model = read(fixture("pangu"))
    assert model.dims == catalog.model("openpangu-ultra-moe-718b").dims
    assert (model.num_dense_layers, model.num_routed_experts, model.num_mtp_layers) == (3, 256, 1)


def test_two_spellings_that_contradict_each_other() -> None:
    assert "attention_kv_lora_dim: is 256, which contradicts kv_lora_rank 512" in refusal(
        changed(attention_kv_lora_dim=256)
    )


def test_longcat_holds_two_mla_blocks_a_layer_whatever_its_library_saved() -> None:
    model = read(fixture("longcat"))
    assert (model.num_layers, model.num_mla_layers) == (28, 56)
    assert (model.intermediate_size, model.moe_intermediate_size, model.num_experts_per_token) == (12288, 2048, 12)
    derived = {key: value for key, value in fixture("longcat").items() if key != "num_layers"}
    assert read(derived).num_layers == 28


def test_switched_off() -> None:
    assert "use_mla: deepseek_v3 switches MLA off" in refusal(changed(use_mla=False))
    assert read(changed(use_mla=True)).dims.kv_lora_rank == 512


def test_a_compressed_query_alone_is_refused_by_name() -> None:
    message = refusal(fixture("compressed_query_only"))
    assert "deepseek_v4" in message
    assert "DeepSeek-V4" in message
    assert "kv_lora_rank" in message


def test_no_mla_at_all_is_refused_by_name() -> None:
    assert "llama has no kv_lora_rank: it is not an MLA model" in refusal(fixture("grouped_query"))


def test_an_empty_mapping_is_refused() -> None:
    assert "this model has no kv_lora_rank" in refusal({})


def test_a_hybrid_says_how_many_of_its_layers_are_mla() -> None:
    model = read(fixture("kimi_linear"))
    assert (model.num_layers, model.num_mla_layers) == (27, 7)
    assert model.mla_layer_indices == catalog.model("kimi-linear-48b-a3b").mla_layer_indices
    assert model.mla_layers.startswith("7 of 27 blocks")
    assert (model.num_experts_per_token, model.max_position_embeddings) == (8, 1048576)


def test_a_hybrid_that_counts_its_layers_from_zero() -> None:
    config = fixture("kimi_linear")
    config["linear_attn_config"] = {"full_attn_layers": [3, 7], "kda_layers": [0, 1, 2, 4, 5, 6]}
    assert read(config).mla_layer_indices == (3, 7)


def test_hybrids_by_layer_types_and_by_group_size() -> None:
    types = ["linear_attention", "linear_attention", "full_attention"] * 2
    assert read(changed(num_hidden_layers=6, layer_types=types)).mla_layer_indices == (2, 5)
    assert read(changed(num_hidden_layers=32, layer_group_size=8)).mla_layer_indices == (7, 15, 23, 31)


def test_sliding_layers_with_widths_of_their_own_are_not_counted() -> None:
    types = ["indexed_attention", "sliding_attention"] * 3
    assert read(changed(num_hidden_layers=6, layer_types=types)).num_mla_layers == 6
    assert read(changed(num_hidden_layers=6, layer_types=types, swa_kv_lora_rank=1024)).mla_layer_indices == (0, 2, 4)


def test_a_hybrid_without_an_mla_layer_is_refused() -> None:
    message = refusal(changed(num_hidden_layers=2, layer_types=["linear_attention"] * 2))
    assert "none of the 2 layers of deepseek_v3 is MLA" in message


def test_a_sparse_index_is_kept() -> None:
    model = read(changed(index_n_heads=64, index_head_dim=128, index_topk=2048))
    assert model.indexer == {"index_n_heads": 64, "index_head_dim": 128, "index_topk": 2048}
    assert model.attention_kind == "mla_dsa"


@pytest.mark.parametrize("key", DIMS)
@pytest.mark.parametrize("value", [-1, 2**40, True, "128", 1.5, [1], {"a": 1}])
def test_a_bad_width_is_named_as_the_file_spells_it(key: str, value: object) -> None:
    message = refusal(changed(**{key: value}))
    assert message.startswith(f"some/Model-X/config.json: {key}: ")
    assert "must be a whole number" in message or "allowed: a" in message


@pytest.mark.parametrize("key", [key for key in DIMS if key not in ("kv_lora_rank", "v_head_dim")])
def test_a_missing_width_is_named(key: str) -> None:
    assert f"{key}: deepseek_v3 does not state this width" in refusal(without(key))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"num_hidden_layers": "61"}, "num_hidden_layers: must be a whole number, not '61'"),
        ({"num_hidden_layers": True}, "num_hidden_layers: must be a whole number, not true"),
        ({"num_hidden_layers": 0}, "num_hidden_layers: out of range, not 0"),
        ({"vocab_size": -5}, "vocab_size: out of range, not -5"),
        ({"tie_word_embeddings": 1}, "tie_word_embeddings: must be true or false, not 1"),
        ({"torch_dtype": 16}, "torch_dtype: must be text, not 16"),
        ({"index_topk": "all"}, "index_topk: must be a whole number, not 'all'"),
        ({"qk_rope_head_dim": 63}, "qk_rope_head_dim: out of range, not 63; allowed: a multiple of 2"),
        ({"layer_types": "full"}, "layer_types: must be a list of layer types"),
        ({"linear_attn_config": {"full_attn_layers": ["a"]}}, "full_attn_layers: must be a list of layer numbers"),
        ({"linear_attn_config": {"full_attn_layers": [99]}}, "names layer 98, num_layers is 61"),
        ({"n_routed_experts": [256]}, "n_routed_experts: must be a whole number, not a list"),
    ],
)
def test_wrong_values_of_other_facts(changes: dict[str, Any], words: str) -> None:
    assert words in refusal(changed(**changes))


@pytest.mark.skipif(not PUBLISHED.is_dir(), reason="the published configs are not beside this checkout")
def test_published_configs_agree_with_the_catalogue() -> None:
    manifest = yaml.safe_load((PUBLISHED.parent / "hf_configs_manifest.yaml").read_text(encoding="utf-8"))
    for file in manifest["files"]:
        path = PUBLISHED / file["file"]
        if not file["is_mla"]:
            with pytest.raises(InputError, match="is not MLA"):
                catalog.model(path)
            continue
        published, ours = catalog.model(path), catalog.model(CATALOGUE_NAMES.get(file["hf_id"], file["hf_id"]))
        for field in type(ours).model_fields:
            stated = getattr(published, field)
            if field.startswith("num_") or field in ("dims", "vocab_size", "intermediate_size", "indexer"):
                assert stated in (None, getattr(ours, field)), f"{path.name}: {field}"


# ---- what is absent, misspelt or of another type


ALWAYS = ["q_lora_rank", "n_routed_experts", "first_k_dense_replace", "n_shared_experts", "num_nextn_predict_layers"]


@pytest.mark.parametrize("key", ALWAYS)
def test_what_a_family_always_states_is_asked_for_and_the_advice_works(key: str) -> None:
    message = refusal(without(key))
    assert message.startswith(
        f"some/Model-X/config.json: {key}: the published configs of deepseek_v3 always state {key}"
    )
    assert read({**without(key), key: fixture("deepseek_like")[key]}) == read(fixture("deepseek_like"))
    written = message.rpartition(f"({key}: ")[2].split(" ")[0]
    assert read({**without(key), key: json.loads(written)}).dims == read(changed(**{key: json.loads(written)})).dims


def test_all_that_a_family_always_states_is_asked_for_at_once() -> None:
    message = refusal(without(*ALWAYS))
    assert f"always state {', '.join(ALWAYS)}, and this file does not" in message


@pytest.mark.parametrize("key", ["index_topk", *ALWAYS])
def test_a_sparse_family_states_its_indexer(key: str) -> None:
    sparse = changed(model_type="deepseek_v32", index_n_heads=64, index_head_dim=128, index_topk=2048)
    assert read(sparse).attention_kind == "mla_dsa"
    assert f"always state {key}, and" in refusal({name: value for name, value in sparse.items() if name != key})


def misspelt(key: str) -> list[str]:
    middle = len(key) // 2
    swapped = key[: middle - 1] + key[middle] + key[middle - 1] + key[middle + 1 :]
    return [key[:-1], key[:middle] + key[middle + 1 :], swapped, f"{key}s", key.replace("_", "-", 1)]


@pytest.mark.parametrize("key", ALWAYS)
def test_a_key_that_is_a_letter_or_two_off_is_named(key: str) -> None:
    value = fixture("deepseek_like")[key]
    for name in misspelt(key):
        renamed = {**without(key), name: value}
        assert f"it has '{name}', which nothing reads" in refusal(renamed), name
        assert f"'{name}' may mean it" in read({**renamed, "model_type": "of_the_future"}).assumed[FACTS[key]], name


FACTS = {
    "q_lora_rank": "q_lora_rank",
    "n_routed_experts": "num_routed_experts",
    "first_k_dense_replace": "num_dense_layers",
    "n_shared_experts": "num_shared_experts",
    "num_nextn_predict_layers": "num_mtp_layers",
}


@pytest.mark.parametrize("key", DIMS)
def test_a_misspelt_width_is_named(key: str) -> None:
    for name in misspelt(key)[:3]:
        message = refusal({**without(key), name: fixture("deepseek_like")[key]})
        assert f"'{name}', which nothing reads" in message


def test_nothing_is_assumed_of_a_file_that_states_all() -> None:
    assert read(changed(topk_method="noaux_tc", scoring_func="sigmoid")).assumed == {}
    assert read(changed(topk_method="noaux_tc", scoring_func="sqrt")).assumed == {
        "router_scores": "scoring_func 'sqrt' is not priced apart; taken: sigmoid, as its family's code has it"
    }


@pytest.mark.skipif(not PUBLISHED.is_dir(), reason="the published configs are not beside this checkout")
def test_nothing_that_a_published_config_states_is_assumed() -> None:
    manifest = yaml.safe_load((PUBLISHED.parent / "hf_configs_manifest.yaml").read_text(encoding="utf-8"))
    for file in manifest["files"]:
        if file["is_mla"] and file["file"] != "LongCat-Flash-Chat.json":
            assert set(catalog.model(PUBLISHED / file["file"]).assumed) <= {"num_mtp_layers", "router_scores"}, file


def test_layers_that_alternate_are_refused_and_leading_dense_ones_counted() -> None:
    assert "moe_layer_freq: only dense layers before all expert layers are priced, not 2" in refusal(
        changed(moe_layer_freq=2)
    )
    assert "moe_layer_freq" in refusal(changed(moe_layer_freq=[0, 1, 0] + [1] * 58, first_k_dense_replace=None))
    assert "moe_layer_freq" in refusal(changed(moe_layer_freq=[0] * 4 + [1] * 57))
    listed = changed(moe_layer_freq=[0] * 4 + [1] * 57, first_k_dense_replace=None)
    assert read(listed).num_dense_layers == 4


READ = {**huggingface._TYPES, "layer_types": "a list", "text_config": "a mapping"}
VALUES: dict[str, Any] = {
    "a whole number": 3,
    "a number": 1.5,
    "true or false": True,
    "text": "x",
    "a list": [1],
    "a list of texts": ["x"],
    "a mapping": {"a": [1]},
}


@pytest.mark.parametrize("key", READ)
def test_every_key_that_is_read_has_a_type(key: str) -> None:
    for words, value in VALUES.items():
        try:
            read(changed(**{key: value}))
        except InputError as error:
            text = str(error)
            assert "\n" not in text
        else:
            assert words.removesuffix(" of texts") in READ[key], (key, value)


def test_the_heading_and_the_json_say_what_is_assumed(tmp_path: Path) -> None:
    renamed = {**without("num_nextn_predict_layers", "q_lora_rank"), "model_type": "other", "topk_method": "greedy"}
    path = tmp_path / "config.json"
    path.write_text(json.dumps(renamed), encoding="utf-8")
    asked: dict[str, Any] = {"model": str(path), "device": None, "form": "explicit", "seq_len": 4096}
    whole = mla_cost.plan(**asked)
    assert set(whole.inputs["assumed"]) == {"q_lora_rank", "num_mtp_layers"}
    assert "assumed: num_nextn_predict_layers is not in the file; taken: no MTP module" in " ".join(repr(whole).split())
    stated = mla_cost.plan(**asked, mtp=0, dims={"q_lora_rank": 1536})
    assert (stated.inputs["assumed"], "assumed:" in repr(stated)) == ({}, False)
    swept = mla_cost.sweep(over={"sp": [1, 2]}, **asked)
    assert swept.assumed == whole.inputs["assumed"]
    gone_over = mla_cost.sweep(over={"mtp": [0], "dims.q_lora_rank": [1536]}, **asked)
    assert gone_over.assumed == {}
    block = mla_cost.plan(**asked, scope="attention")
    assert set(block.inputs["assumed"]) == {"q_lora_rank"}
    assert "assumed: q_lora_rank is not in the file" in repr(block)
