"""The catalogue: names as people type them, only the needed file parsed, and the figures that must not drift."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

import mla_cost
from mla_cost.cli import catalogue
from mla_cost.errors import InputError
from mla_cost.inputs import catalog
from mla_cost.inputs.config import DeviceConfig, ModelConfig

DATA = Path(__file__).parents[2].parent / "shared" / "data"
with_data = pytest.mark.skipif(not DATA.is_dir(), reason="the data files are not beside this checkout")
HEAVY = ("numpy", "sympy", "rich", "typer", "torch", "matplotlib")
USER_MODEL = """\
num_layers: 4
dims:
  {hidden: 512, heads: 8, q_lora_rank: null, kv_lora_rank: 64,
   qk_nope_head_dim: 16, qk_rope_head_dim: 8, v_head_dim: 16}
"""


def refusal(call: Any, *arguments: Any) -> str:
    with pytest.raises(InputError) as caught:
        call(*arguments)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def written(directory: Path, name: str, text: str) -> Path:
    path = directory / name
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    "name", ["deepseek-v3", "DeepSeek-V3", "deepseek-ai/DeepSeek-V3", "deepseek_v3", " DeepSeek V3 ", "DEEPSEEK-V3"]
)
def test_a_model_by_the_names_people_type(name: str) -> None:
    assert catalog.model(name) is catalog.model("deepseek-v3")


@pytest.mark.parametrize(
    ("name", "canonical"),
    [
        ("moonshotai/Kimi-K2-Instruct", "kimi-k2"),
        ("Kimi-K2.5 (text)", "kimi-k2.5"),
        ("zai-org/GLM-5", "glm-5"),
        ("tencent/Hy4", "hy4"),
        ("moonlight", "moonlight-16b-a3b"),
    ],
)
def test_models_by_their_other_names(name: str, canonical: str) -> None:
    assert catalog.model(name).name == canonical


@pytest.mark.parametrize(
    ("name", "canonical"),
    [
        ("A100-SXM4-80GB", "a100-80gb"),
        ("NVIDIA H100 80GB HBM3", "h100-80gb"),
        ("910B3", "910b-64gb"),
        ("910b4", "910b4-32gb"),
        ("Ascend-910C (per die)", "910c-64gb"),
        ("H200", "h200-141gb"),
        ("AMD Instinct MI300X", "mi300x"),
    ],
)
def test_devices_by_their_other_names(name: str, canonical: str) -> None:
    assert catalog.device(name).name == canonical


def test_every_entry_is_valid_and_named_as_its_file() -> None:
    assert [catalog.model(name).name for name in catalog.model_names()] == list(catalog.model_names())
    assert [catalog.device(name).name for name in catalog.device_names()] == list(catalog.device_names())


def test_the_alias_index_is_not_stale() -> None:
    stored = yaml.safe_load((catalog.configs_directory() / "aliases.yaml").read_text(encoding="utf-8"))
    reported = "run: python -c 'from mla_cost.inputs import catalog; catalog.write_alias_index()'"
    assert stored == catalog.alias_index(), reported


@pytest.mark.parametrize(
    ("call", "name", "words"),
    [
        (catalog.model, "deepsek-v3", "unknown model 'deepsek-v3'; allowed: the names that `mla-cost models` lists"),
        (catalog.model, "deepsek-v3", "did you mean deepseek-v3 or "),
        (catalog.model, "someone/DeepSeek-V3", "did you mean deepseek-v3 or "),
        (catalog.device, "910b", "did you mean 910b-64gb or 910b1-64gb or "),
        (catalog.device, "a100", "did you mean a100-40gb or a100-80gb or "),
        (catalog.device, "mi300", "did you mean mi300x?"),
        (catalog.model, "", "unknown model ''"),
        (catalog.model, "../devices/mi300x", "unknown model"),
        (catalog.model, "x" * 10_000, "unknown model 'xxx"),
        (catalog.model, 3, "a model is asked for by its name or the path of its file, not 3"),
        (catalog.entry, None, "a model or device is asked for by its name or the path of its file, not null"),
        (catalog.entry, "h100-81gb", "unknown model or device 'h100-81gb'"),
        (catalog.entry, "h100-81gb", "`mla-cost models` and `mla-cost devices` list"),
    ],
)
def test_unknown_names_get_the_nearest(call: Any, name: Any, words: str) -> None:
    assert words in refusal(call, name)


def test_a_users_own_model_needs_its_widths_only(tmp_path: Path) -> None:
    model = catalog.model(written(tmp_path, "mine.yaml", USER_MODEL))
    assert (model.name, model.title, model.num_layers, model.num_mla_layers) == ("mine", "mine", 4, 4)
    assert model.dims.q_lora_rank is None
    assert not model.verified
    unknown_depth = USER_MODEL.partition("\n")[2]
    assert catalog.model(written(tmp_path, "one.yaml", unknown_depth)).num_layers is None


def test_a_users_own_model_may_be_json(tmp_path: Path) -> None:
    path = written(tmp_path, "mine.json", json.dumps(yaml.safe_load(USER_MODEL)))
    assert catalog.model(str(path)).dims == catalog.model(written(tmp_path, "mine.yaml", USER_MODEL)).dims


def test_a_published_config_is_found_by_its_path(tmp_path: Path) -> None:
    fixture = Path(__file__).parents[1] / "fixtures" / "hf" / "deepseek_like.json"
    (tmp_path / "My-Model").mkdir()
    path = written(tmp_path / "My-Model", "config.json", fixture.read_text(encoding="utf-8"))
    assert catalog.model(path).dims == catalog.model("deepseek-v3").dims
    assert catalog.model(path).name == "My-Model"


def test_a_file_is_read_again_only_when_it_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path, "mine.yaml", USER_MODEL)
    before = catalog.model(path)
    assert catalog.model(path) is before
    path.write_text(USER_MODEL.replace("heads: 8", "heads: 16"), encoding="utf-8")
    assert catalog.model(path).dims.heads == 16
    monkeypatch.setattr(catalog, "load_mapping", None)
    assert catalog.model("deepseek-v3") is catalog.model("DeepSeek-V3")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (USER_MODEL.replace("heads", "head"), "dims.heads: this key is missing"),
        (USER_MODEL + "nam: x\n", "nam: unknown key; did you mean name?"),
        (USER_MODEL + "num_layers: 5\n", "line 5, column 1: the key 'num_layers' is given twice"),
        ("name: x\n", "dims: this key is missing"),
        ("a: !!python/name:os.system\n", "the tag"),
    ],
)
def test_bad_model_files(tmp_path: Path, text: str, words: str) -> None:
    path = written(tmp_path, "bad.yaml", text)
    message = refusal(catalog.model, path)
    assert message.startswith(f"{path}: ")
    assert words in message


def test_bad_paths(tmp_path: Path) -> None:
    assert "no such file" in refusal(catalog.model, "absent.yaml")
    assert f"{tmp_path}/config.json: no such file" in refusal(catalog.model, f"{tmp_path}/")  # a checkpoint without one
    assert "this is a directory" in refusal(catalog.device, str(tmp_path))
    assert "cannot be read (embedded null byte)" in refusal(catalog.model, "a\x00.json")


def test_a_users_own_device(tmp_path: Path) -> None:
    text = (catalog.configs_directory() / "devices" / "mi300x.yaml").read_text(encoding="utf-8")
    path = written(tmp_path, "mine.yaml", text.replace("name: mi300x\n", ""))
    assert catalog.device(path).name == "mine"
    assert isinstance(catalog.entry(path), DeviceConfig)
    assert isinstance(catalog.entry(written(tmp_path, "model.yaml", USER_MODEL)), ModelConfig)


def in_a_fresh_python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_importing_the_catalogue_imports_nothing_heavy() -> None:
    code = f"import sys, mla_cost.inputs.catalog; print([name for name in {HEAVY} if name in sys.modules])"
    assert in_a_fresh_python(code) == "[]"


@pytest.mark.parametrize(
    ("call", "files"),
    [
        ("model('deepseek-v3')", ["deepseek-v3.yaml"]),
        ("model('DeepSeek V3'); catalog.device('a100-80gb')", ["deepseek-v3.yaml", "a100-80gb.yaml"]),
        ("model('moonshotai/Kimi-K2-Instruct')", ["aliases.yaml", "kimi-k2.yaml"]),
    ],
)
def test_only_the_needed_files_are_parsed(call: str, files: list[str]) -> None:
    code = f"""
import os
from mla_cost.inputs import catalog
read, load = [], catalog.load_mapping
catalog.load_mapping = lambda path: (read.append(os.path.basename(path)), load(path))[1]
catalog.{call}
print(read)
"""
    assert in_a_fresh_python(code) == str(files)


def test_configs_are_found_beside_the_package_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "site-packages" / "mla_cost"
    (package / "configs").mkdir(parents=True)
    written(package / "configs", "aliases.yaml", "models: {}\n")
    monkeypatch.setattr(catalog, "__file__", str(package / "inputs" / "catalog.py"))
    assert catalog.configs_directory.__wrapped__() == package / "configs"
    (package / "configs" / "aliases.yaml").unlink()
    with pytest.raises(RuntimeError, match="has no configs directory"):
        catalog.configs_directory.__wrapped__()


# The figures themselves, against the data they were taken from.

MODEL_FIELDS = {
    "num_layers": "num_hidden_layers",
    "num_routed_experts": "n_routed_experts",
    "num_shared_experts": "n_shared_experts",
    "num_experts_per_token": "num_experts_per_tok",
    "num_dense_layers": "first_k_dense_replace",
    "num_mtp_layers": "num_nextn_predict_layers",
    "tied_embeddings": "tie_word_embeddings",
    "dtype": "torch_dtype",
    **{name: name for name in ("vocab_size", "intermediate_size", "moe_intermediate_size", "verified", "hf_id")},
}
DIM_FIELDS = {"hidden": "hidden_size", "heads": "num_attention_heads"}


@with_data
def test_every_complete_model_of_the_data_is_here() -> None:
    listed = yaml.safe_load((DATA / "mla_models.yaml").read_text(encoding="utf-8"))["models"]
    widths = {dim: DIM_FIELDS.get(dim, dim) for dim in catalog.model("glm-5").dims.model_dump()}
    complete = [
        entry for entry in listed if all(entry[key] is not None for key in widths.values() if key != "q_lora_rank")
    ]
    assert len(complete) == len(catalog.model_names())
    for entry in complete:
        model = catalog.model(entry["name"])
        assert model.dims.model_dump() == {dim: entry[key] for dim, key in widths.items()}, model.name
        for field, key in MODEL_FIELDS.items():
            assert getattr(model, field) == entry[key], f"{model.name}: {field}"
        stated = {key: value for key, value in entry["params"].items() if value is not None and key != "exact_scope"}
        assert model.parameters == stated


LOWER_LOGS = {  # GiB that torch shows in logs found after the data was gathered; each device file cites them
    "a100-80gb": 79.25,
    "a100-pcie-80gb": 79.15,
    "a800-80gb": 79.33,
    "h100-80gb": 79.10,
    "h200-141gb": 139.72,
    "h20-96gb": 97285 / 1024,
    "h800-80gb": 79.10,
}
# devices that the data does not list: what a runtime shows in all, and what torch shows in logs, as published
LATER = {
    "b300-288gb": (275040 * 2**20, int(267.69 * 2**30)),
    "gb300": (284208 * 2**20, int(276.50 * 2**30)),
    "h20-141gb": (143771 * 2**20, int(139.72 * 2**30)),
    "mi355x": (288 * 2**30 - 16 * 2**20, int(287.98 * 2**30)),
}


def test_devices_found_after_the_data() -> None:
    for name, (total, visible) in LATER.items():
        device = catalog.device(name)
        assert (device.runtime_total_bytes.integer, device.visible_bytes.integer) == (total, visible)
        asked: dict[str, Any] = {"scope": "attention", "model": "deepseek-v3", "form": "explicit", "seq_len": 4096}
        (row,) = mla_cost.plan(**asked, device=name).results
        assert row.verdict is not None
        assert (row.kernel, row.verdict.status) == ("flash", "fits")


@with_data
def test_every_device_of_the_data_is_here() -> None:
    listed = yaml.safe_load((DATA / "hardware.yaml").read_text(encoding="utf-8"))["devices"]
    assert len(listed) == len(set(catalog.device_names()) - LATER.keys())
    for entry in listed:
        device = catalog.device(entry["name"])
        assert device.runtime_total_bytes.value == entry["memory"]["runtime_total_bytes"]["value"]
        assert device.memory_bandwidth_gb_s.value == entry["memory_bandwidth_gb_s"]["value"]
        assert device.memory_bandwidth_gb_s.verified == entry["memory_bandwidth_gb_s"]["verified"]
        assert device.peak_bf16_dense_tflops.value == entry["peak_bf16_dense_tflops"]["value"]
        assert device.intra_node_gb_s.value == entry["intra_node"]["per_device_per_direction_gb_s"]["value"]
        stated = entry["memory"].get("framework_visible_bytes")
        if device.name in LOWER_LOGS:
            assert device.visible_bytes.integer == int(LOWER_LOGS[device.name] * 2**30)
            assert stated is None or device.visible_bytes.integer <= stated["value"]
        else:
            assert stated is None or stated["value"] == device.visible_bytes.value


def test_hybrids_say_how_many_of_their_layers_are_mla() -> None:
    counts = {name: catalog.model(name).num_mla_layers for name in ("kimi-k3", "glm-5.3-flash", "ling-2.6-flash")}
    assert counts == {"kimi-k3": 24, "glm-5.3-flash": 11, "ling-2.6-flash": 4}
    assert catalog.model("kimi-k3").mla_layers.startswith("24 of 93 blocks")
    assert (catalog.model("longcat-flash-chat").num_layers, catalog.model("longcat-flash-chat").num_mla_layers) == (
        28,
        56,
    )


def test_every_device_has_a_reserve_for_its_process_and_its_communicators() -> None:
    for name in catalog.device_names():
        assert {item.per for item in catalog.device(name).reserve} == {"process", "communicator"}


def test_the_910b_says_which_bin_it_is() -> None:
    device = catalog.device("910b-64gb")
    assert "910B3" in (device.notes or "")
    assert 60.96 <= device.visible_bytes.integer / 2**30 <= 60.98
    buffers = next(item for item in device.reserve if item.per == "communicator")
    assert (buffers.bytes, buffers.verified) == (419_430_400, True)


# What is printed.


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("FORCE_COLOR", "COLUMNS", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(variable, raising=False)


@pytest.mark.usefixtures("plain")
def test_tables_fit_80_columns_without_colour(capsys: pytest.CaptureFixture[str]) -> None:
    catalogue.models()
    catalogue.devices()
    catalogue.show("kimi-k3")
    catalogue.show("910b3")
    catalogue.show("a800")
    printed = capsys.readouterr().out
    assert "\x1b" not in printed
    assert max(len(line) for line in printed.splitlines()) <= 80
    assert "longcat-flash-lite-sparse" in printed
    assert "24/93" in printed


@pytest.mark.usefixtures("plain")
def test_show_gives_source_and_verification_of_each_fact(capsys: pytest.CaptureFixture[str]) -> None:
    catalogue.show("ling-2.6-flash")
    lines = {line.split()[0]: line.split() for line in capsys.readouterr().out.splitlines() if line.strip()}
    assert lines["dims.v_head_dim"][1:] == ["no", "128"]
    assert lines["dims.kv_lora_rank"][1:] == ["yes", "512"]
    assert lines["source:"][1:] == ["HF", "inclusionAI/Ling-2.6-flash-fp8", "config.json"]
    catalogue.show("910b-64gb")
    printed = " ".join(capsys.readouterr().out.split())
    assert "framework_visible_bytes yes npusmi 65,466,039,009 B (60.97 GiB)" in printed
    assert "source npusmi: public npu-smi info logs" in printed
    assert "note: This is the 910B3." in printed


def test_json_output(capsys: pytest.CaptureFixture[str]) -> None:
    catalogue.models("json")
    listed = json.loads(capsys.readouterr().out)
    assert listed["schema"] == "mla-cost/models/1"
    assert [model["name"] for model in listed["models"]] == list(catalog.model_names())
    catalogue.devices("json")
    assert json.loads(capsys.readouterr().out)["devices"][0]["name"] == "910b-64gb"
    catalogue.show("deepseek-v3", "json")
    shown = json.loads(capsys.readouterr().out)
    assert (shown["schema"], shown["model"]["dims"]["kv_lora_rank"]) == ("mla-cost/model/1", 512)
    catalogue.show("mi300x", "json")
    assert json.loads(capsys.readouterr().out)["device"]["family"] == "rocm"


def test_an_unknown_format() -> None:
    assert "--format: unknown format: 'xml'; allowed: table or json" in refusal(catalogue.models, "xml")


@pytest.mark.parametrize("columns", ["40", "60", "80"])
def test_no_number_is_cut_or_split_in_a_narrow_terminal(capsys, monkeypatch, columns: str) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    catalogue.models()
    shown = " ".join(capsys.readouterr().out.split())
    in_columns = "deepseek-v3 7168 128 1536 512 128 64 128 61 "
    as_list = "deepseek-v3, hidden 7168, heads 128, q 1536, kv 512, nope 128, rope 64, v 128, blocks 61 "
    assert (in_columns if columns == "80" else as_list) in shown
    catalogue.devices()
    shown = " ".join(capsys.readouterr().out.split())
    in_columns = "910b-64gb 60.97 1600 313 196 25 "
    as_list = "910b-64gb, GiB 60.97, memory 1600, TFLOPS 313, link 196, net 25, "
    assert (in_columns if columns == "80" else as_list) in shown
