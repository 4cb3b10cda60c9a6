"""Launch scripts as plans: what each flag becomes, typed by hand from the fixtures and from the frameworks' sources."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import mla_cost
from mla_cost.cli import main
from mla_cost.declared.foreign import FULLY_SHARDED
from mla_cost.errors import InputError
from mla_cost.inputs import importers
from mla_cost.inputs.config import validated
from mla_cost.inputs.importers import shell
from mla_cost.inputs.importers.imported import Imported
from mla_cost.inputs.settings import PlanSettings

LAUNCH = Path(__file__).parents[1] / "fixtures" / "launch"
# 32 x 8 ranks over tp 2 x cp 2 x pp 4 are dp 16; 256 x 4 sequences over dp 16 are 64 micro-batches
MEGATRON: dict[str, Any] = {
    "model": "deepseek-v3", "form": ["explicit"], "profile": "megatron", "seq_len": 4096,
    "tp": 2, "sp": 2, "pp": 4, "ep": 16, "etp": 1, "dp": 16, "scheme": "ring",
    "micro_batch": 1, "micro_batches": 64, "pipeline_layout": "Et*15|t*16|t*16|t*14mL",
    "sharding": "distributed", "dtype": "bf16", "gradient_dtype": "bf16", "optimizer_offload": 100,
    "remat": "mla_up_proj+moe", "dispatcher": "deepep", "shared_overlap": "on",
    "vocab_multiple": 3232,
}  # fmt: skip
# layer 27 of 28 does nothing: the last stage holds six. 16 x 8 ranks over 2 x 2 x 4 are dp 8
MINDSPEED: dict[str, Any] = {
    "model": "deepseek-v2-lite", "device": ["910b-64gb"], "form": ["explicit"], "seq_len": 8192,
    "tp": 2, "sp": 2, "pp": 4, "ep": 8, "etp": 1, "dp": 8, "scheme": "ulysses",
    "micro_batch": 1, "micro_batches": 8, "pipeline_layout": "Ettttttt|ttttttt|ttttttt|ttttttL",
    "sharding": "distributed", "dtype": "bf16", "gradient_dtype": "fp32", "remat": "full", "vocab_multiple": 1,
}  # fmt: skip


_RUN: dict[str, Any] = {"form": ["explicit"], "sharding": "distributed", "dtype": "bf16", "gradient_dtype": "fp32"}
OTHERS: dict[str, dict[str, Any]] = {
    # 8 ranks over tp 4: dp 2; 128 x 8 responses over 4 steps and dp 2 are 128 of 4,096 tokens, 64 packs of 8,192
    "slime.sh": {
        **_RUN, "model": "moonlight-16b-a3b", "seq_len": 8192, "tp": 4, "pp": 1, "sp": 1, "ep": 8, "etp": 1, "dp": 2,
        "micro_batch": 1, "micro_batches": 64, "remat": "full", "dispatcher": "deepep", "profile": "megatron",
    },
    # 32 ranks over tp 8 x pp 2: dp 2; 256 x 4 responses over dp 2 x 2
    "verl.sh": {
        **_RUN, "model": "moonlight-16b-a3b", "seq_len": 4096, "tp": 8, "pp": 2, "sp": 1, "ep": 8, "etp": 1, "dp": 2,
        "last_layers": 13, "micro_batch": 2, "micro_batches": 256, "remat": "none", "dispatcher": "alltoall",
        "profile": "megatron",
    },
    # no ranks: the fewest of tp 2 that hold ep 8 are dp 4
    "bridge.yaml": {
        **_RUN, "model": "moonlight-16b-a3b", "seq_len": 8192, "tp": 2, "pp": 1, "sp": 1, "ep": 8, "etp": 1, "dp": 4,
        "micro_batch": 1, "micro_batches": 8, "remat": "mla_up_proj", "dispatcher": "alltoall", "rope_fusion": "off",
        "profile": "megatron", "vocab_multiple": 128,
    },
    # 32 ranks over tp 2: dp 16
    "nemo.yaml": {
        **_RUN, "model": "deepseek-v2-lite", "seq_len": 4096, "tp": 2, "pp": 1, "sp": 1, "ep": 8, "etp": 1, "dp": 16,
        "micro_batch": 1, "micro_batches": 4, "remat": "full", "remat_layers": 4, "dispatcher": "alltoall",
        "profile": "megatron",
    },
    # 14 layers and both ends are 16, two in each of eight chunks; the ends' hold one layer less; dp 16 holds ep 16
    "model_args.yaml": {
        **_RUN, "model": "deepseek-v3", "seq_len": 4096, "tp": 1, "pp": 4, "sp": 1, "ep": 16, "etp": 1, "dp": 16,
        "pipeline_layout": "Et|tt|tt|tt|tt|tt|tt|tmL", "micro_batch": 1, "micro_batches": 32,
        "remat": "none", "dispatcher": "hybridep", "cross_entropy": "native-fused", "profile": "megatron",
        "vocab_multiple": 128, "facts": {"num_layers": 14, "num_routed_experts": 64, "num_mla_layers": 14},
    },
    "titan.toml": {
        "form": ["explicit"], "model": "deepseek-v2-lite", "seq_len": 4096, "tp": 1, "pp": 1, "sp": 1, "ep": 8,
        "etp": 1, "dp": 8, "micro_batch": 4, "micro_batches": 4, "remat": "full", "dtype": "bf16",
        "sharding": FULLY_SHARDED or "zero2", "moe_style": "torchtitan",
    },
    # 256 / (2 x 4)
    "deepspeed.json": {
        "model": "deepseek-v3", "seq_len": 16384, "micro_batch": 2, "micro_batches": 4, "dp": 32, "sharding": "zero1",
        "dtype": "bf16", "gradient_dtype": "bf16",
    },
    "accelerate.yaml": {
        "model": "deepseek-v3", "seq_len": 16384, "dp": 16, "dtype": "bf16", "sharding": "zero2", "remat": "full",
    },
}  # fmt: skip


def read(name: str, **options: Any) -> Imported:
    return importers.read(LAUNCH / name, **options)


@pytest.mark.parametrize(
    ("name", "settings"), [("megatron.sh", MEGATRON), ("mindspeed.sh", MINDSPEED), *OTHERS.items()]
)
def test_every_setting_follows_from_the_script(name: str, settings: dict[str, Any]) -> None:
    assert read(name).settings == settings


def test_what_is_assumed_names_its_source_and_what_is_ignored_its_reason() -> None:
    found = read("megatron.sh")
    assumed = {each.setting: each for each in found.assumed}
    assert assumed["scheme"].source == "NVIDIA/Megatron-LM@d98e8a64 megatron/training/arguments.py:3221"
    assert "DeepSeek-V3's" in assumed["facts.vocab_size"].why
    ignored = {each.said: each for each in found.ignored}
    assert found.settings["optimizer_offload"] == 100
    assert ignored["--a-flag-of-our-own 7"].why == "is not known here"
    assert any("more_arguments.sh: another file is not read" in each.why for each in found.ignored)
    with pytest.raises(InputError, match=r"--strict: the file does not decide .*scheme"):
        read("megatron.sh", strict=True)


def test_ranks_that_the_user_states_decide_the_micro_batches() -> None:
    assert read("megatron.sh", dp=32).settings["micro_batches"] == 32
    with pytest.raises(InputError, match="does not split over micro-batches of 1 on 48 data ranks"):
        read("megatron.sh", dp=48)


@pytest.mark.parametrize("name", ["megatron.sh", "mindspeed.sh", *OTHERS])
def test_the_written_plan_is_the_plan(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = tmp_path / "plan.yaml"
    with pytest.raises(SystemExit) as ended:
        main(["import", str(LAUNCH / name), "-o", str(plan)])
    assert ended.value.code == 0
    found = read(name)
    again = mla_cost.plan_file(plan)
    assert PlanSettings(**again) == validated(PlanSettings, found.settings)
    text = plan.read_text(encoding="utf-8")
    told = [*(each.said for each in found.taken), *(each.said for each in found.ignored)]
    told += [each.why for each in found.assumed]
    assert [words for words in told if words.split(" ")[0] not in text] == []
    assert "wrote" in capsys.readouterr().err


def test_a_script_prices_as_its_plan_does(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["plan", "--from", str(LAUNCH / "megatron.sh"), "--device", "h100-80gb", "--format", "csv"])
    told = capsys.readouterr()
    assert ended.value.code == 0, told.err
    row = mla_cost.plan(**{**MEGATRON, "device": "h100-80gb"}).results[0]
    assert str(row.memory.allocated_peak_bytes) in told.out
    assert row.host is not None
    assert row.host.ranks == 8


def test_a_model_that_the_catalogue_has_not_is_the_scripts_own(tmp_path: Path) -> None:
    script = tmp_path / "mine.sh"
    script.write_text((LAUNCH / "megatron.sh").read_text().replace("--hidden-size 7168", "--hidden-size 5120"))
    found = importers.read(script)
    assert found.own_model is not None
    assert found.own_model["dims"]["hidden"] == 5120
    assert found.settings["model"] == str(script)
    with pytest.raises(SystemExit):
        main(["import", str(script), "-o", str(tmp_path / "p.yaml")])
    written = mla_cost.plan_file(tmp_path / "p.yaml")
    assert written["model"] == str(tmp_path / "p.model.yaml")
    # neither states a vocabulary: a plan asks for it by name
    verdict = mla_cost.plan(**{**found.settings, "device": "h100-80gb"}).results[0].verdict
    assert verdict is not None
    assert "vocab_size" in verdict.reason
    facts = {"facts": {"vocab_size": 129280}, "device": None}
    rows = [mla_cost.plan(**{**MEGATRON, **facts, "model": each}) for each in (str(script), written["model"])]
    assert rows[0].results[0].memory.allocated_peak_bytes == rows[1].results[0].memory.allocated_peak_bytes


def words(text: str) -> list[tuple[str, ...]]:
    return list(shell.read(text, "x.sh").commands)


def test_shell_is_read_and_never_run(tmp_path: Path) -> None:
    target = tmp_path / "made"
    text = f"A=$(touch {target})\nrun $A `touch {target}` $(( 2*(3+4)%5 ))\n"
    assert words(text) == [("run", "\N{REPLACEMENT CHARACTER}", "\N{REPLACEMENT CHARACTER}", "4")]
    assert not target.exists()
    assert words('A=1 # isn\'t B\nB=(x\n y) \nB+=(z)\nrun $A ${B[@]} ${C:-${D:-5}} "a b"') == [
        ("run", "1", "x", "y", "z", "5", "a b")
    ]
    assert words('X=2\nif [[ $X -eq 1 ]]; then run 1; elif [ "$X" = 2 ]; then run 2; else run 3; fi\nrun 4') == [
        ("run", "2"), ("run", "4"),
    ]  # fmt: skip
    assert words("bash -c 'cd x && torchrun --a 1' <<EOF\nrun --b 2\nEOF\n")[-1] == ("run", "--b", "2")
    bomb = "A=xxxxxxxxxx\n" + "A=$A$A$A$A$A$A$A$A\n" * 9
    with pytest.raises(InputError, match="beyond any launch script"):
        words(bomb)
    many = "A=" + "x" * 100_000 + "\n" + "run $A\n" * 10_000
    with pytest.raises(InputError, match="beyond any launch script"):
        words(many)
    with pytest.raises(InputError, match="line 2: a quote is never closed"):
        words("run\nB='x\n")


def test_python_takes_a_script_for_a_plan_file_and_the_command_line_says_how() -> None:
    assert mla_cost.plan_file(LAUNCH / "megatron.sh")["micro_batches"] == 64
    with pytest.raises(SystemExit) as ended:
        main(["plan", str(LAUNCH / "megatron.sh")])
    assert ended.value.code == 2


def test_a_model_that_is_not_known_is_never_another_one(tmp_path: Path) -> None:
    script = tmp_path / "verl.sh"
    script.write_text((LAUNCH / "verl.sh").read_text().replace("moonshotai/Moonlight-16B-A3B", "Qwen/Qwen3-8B"))
    with pytest.raises(InputError, match="no MLA model of the catalogue goes by 'Qwen/Qwen3-8B'; allowed: the model"):
        importers.read(script)
    assert importers.read(script, model="kimi-k2").settings["model"] == "kimi-k2"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("--multi-latent-attention", ""), "no --multi-latent-attention, and only MLA is priced"),
        (("--seq-length 4096", ""), "--seq-length: is not in the file"),
        (("--hidden-size 7168", "--hidden-size big"), "--hidden-size: must be a whole number, not 'big'"),
        (("[0]*3", "[0,1]*3"), "--moe-layer-freq: only dense layers before all expert layers are priced"),
        (("--context-parallel-size 2", "--context-parallel-size 2 --cp-comm-type a2a+x"), "--cp-comm-type: is not"),
        (("--seq-length 4096", "--seq-length $OUTSIDE"), "--seq-length: is decided outside the file"),
    ],
)
def test_a_fault_names_the_flag(change: tuple[str, str], message: str, tmp_path: Path) -> None:
    script = tmp_path / "t.sh"
    script.write_text((LAUNCH / "megatron.sh").read_text().replace(*change))
    with pytest.raises(InputError) as caught:
        importers.read(script)
    assert message in str(caught.value)
