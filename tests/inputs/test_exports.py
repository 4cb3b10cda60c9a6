"""Plans in the words of frameworks, and back: what a framework can say comes back as it was, and the rest is told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import mla_cost
from mla_cost.cli import main
from mla_cost.declared.foreign import FULLY_SHARDED
from mla_cost.errors import InputError
from mla_cost.inputs import exporters, importers
from mla_cost.inputs.config import validated
from mla_cost.inputs.settings import PlanSettings

LAUNCH = Path(__file__).parents[1] / "fixtures" / "launch"
SUFFIX = {"megatron": "sh", "mindspeed": "sh", "torchtitan": "toml", "deepspeed-json": "json"}
KIMI: dict[str, Any] = {
    "model": "kimi-k2", "form": ("explicit",), "seq_len": 8192, "tp": 2, "pp": 8, "ep": 16, "etp": 1, "dp": 8,
    "virtual_stages": 2, "first_layers": 6, "last_layers": 7, "micro_batches": 16, "micro_batch": 2,
    "sharding": "distributed", "remat": "core_attn+moe",
}  # fmt: skip


def back(settings: PlanSettings, to: str, folder: Path) -> dict[str, Any]:
    file = folder / f"run.{SUFFIX[to]}"
    file.write_text(exporters.export(settings, to).text, encoding="utf-8")
    return importers.read(file).settings


@pytest.mark.parametrize("name", ["megatron.sh", "mindspeed.sh", "slime.sh", "verl.sh", "bridge.yaml"])
def test_a_script_comes_back_from_its_own_words(name: str, tmp_path: Path) -> None:
    settings = validated(PlanSettings, importers.read(LAUNCH / name).settings)
    to = "mindspeed" if name.startswith("mind") else "megatron"
    assert validated(PlanSettings, back(settings, to, tmp_path)) == settings
    assert exporters.export(settings, to).without == ()


@pytest.mark.parametrize("to", SUFFIX)
def test_what_a_framework_can_say_comes_back(to: str, tmp_path: Path) -> None:
    asked = {**KIMI, "model": "deepseek-v3"} if to == "torchtitan" else KIMI
    settings = PlanSettings(**asked).by_scope()
    without = dict(exporters.export(settings, to).without)
    found = back(settings, to, tmp_path)
    given = (
        {"model", "seq_len"} if to == "deepspeed-json" else {"device", "mtp", "moe_style"}
    )  # torchtitan has no MTP module, and says so
    if to == "torchtitan":
        assert "no multi-token-prediction module" in exporters.export(settings, to).text
    same = {name: value for name, value in found.items() if name not in without and name not in given}
    for name, value in same.items():
        stated = getattr(settings, name)
        assert (list(stated) if isinstance(stated, tuple) else stated) == value, name
    words = {
        "megatron": set(),
        "mindspeed": set(),
        "torchtitan": {"virtual_stages", "first_layers", "last_layers", "remat", "sharding"},
        "deepspeed-json": {"seq_len", "tp", "pp", "ep", "virtual_stages", "first_layers", "last_layers", "remat"}
        | {"sharding"},
    }
    assert set(without) == words[to]


def test_deepspeed_and_fsdp_in_their_own_words(tmp_path: Path) -> None:
    zero = PlanSettings(form=("explicit",), sharding="zero2", dp=4, micro_batches=8, gradient_dtype="bf16", sp=2)
    found = back(zero, "deepspeed-json", tmp_path)
    assert {found[name] for name in ("sharding",)} == {"zero2"}
    assert (found["dp"], found["micro_batches"], found["sp"], found["gradient_dtype"]) == (4, 8, 2, "bf16")
    if FULLY_SHARDED:
        fsdp = PlanSettings(form=("explicit",), model="deepseek-v3", sharding=FULLY_SHARDED, dp=8, seq_len=4096)
        assert back(fsdp, "torchtitan", tmp_path)["sharding"] == FULLY_SHARDED


@pytest.mark.parametrize(("to", "scheme"), [("megatron", "a2a-p2p"), ("mindspeed", "usp"), ("mindspeed", "kv-gather")])
def test_groups_inside_groups_come_back(to: str, scheme: str, tmp_path: Path) -> None:
    profile: Any = "megatron" if to == "megatron" else "reference"
    inside = 0 if scheme == "kv-gather" else 2
    asked = PlanSettings(**{**KIMI, "sp": 8}, scheme=scheme, sp_inside=inside, profile=profile).by_scope()
    found = back(asked, to, tmp_path)
    assert (found["scheme"], found["sp"], found.get("sp_inside", 0)) == (scheme, 8, inside)


def test_blocks_of_recomputed_layers_and_replicas_come_back(tmp_path: Path) -> None:
    block = PlanSettings(**{**KIMI, "remat": "full", "remat_layers": 2}).by_scope()
    found = back(block, "megatron", tmp_path)
    assert (found["remat"], found["remat_layers"]) == ("full", 2)
    asked: dict[str, Any] = {"form": ("explicit",), "model": "deepseek-v3", "sharding": FULLY_SHARDED, "dp": 8}
    copies = back(PlanSettings(**asked, replicas=2, seq_len=4096), "torchtitan", tmp_path)
    assert (copies["dp"], copies["replicas"]) == (8, 2)


def test_a_node_holds_as_many_ranks_as_its_device_has(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["export", "--dp", "32", "--device", "910b-64gb", "--seq-len", "4k", "--to", "torchrun"])
    assert ended.value.code == 0
    line = (
        "torchrun --nnodes 4 --nproc-per-node 8 --rdzv-backend c10d --rdzv-endpoint $MASTER_ADDR:$MASTER_PORT train.py"
    )
    told = capsys.readouterr()
    assert told.out == f"{line}\n"
    assert "no word for dp 32" in told.err


def test_what_cannot_be_said_is_refused_by_name() -> None:
    with pytest.raises(InputError, match="Megatron-LM trains no form laga; allowed: explicit"):
        exporters.export(PlanSettings(form=("laga",)), "megatron")
    with pytest.raises(InputError, match="torchtitan's deepseek_v3 has no such model: 'kimi-k2'"):
        exporters.export(PlanSettings(model="kimi-k2"), "torchtitan")
    with pytest.raises(InputError, match="a block alone is no run of a framework"):
        exporters.export(PlanSettings(scope="attention"), "megatron")
    assert mla_cost.plan_file("deepseek-v3-2048-h800")["pp"] == 16
