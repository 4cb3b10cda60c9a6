"""No setting is dropped without a word, and no command falls over one.

Every setting of a plan, with a value that is not the default, changes figures, is refused, is noted, or stands in the
row as what was priced. Every command takes what `plan` takes.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

import mla_cost
from mla_cost.cli import main
from mla_cost.cli.options import offered
from mla_cost.declared import defaults
from mla_cost.declared.optimizers import OPTIMIZERS
from mla_cost.errors import InputError
from mla_cost.inputs.settings import PlanSettings
from mla_cost.inputs.table import TABLE, Setting
from mla_cost.results import Result
from tests.choosing import EXHAUSTIVE

VALUES: dict[str, list[Any]] = {
    "scheme": ["kv-gather", "ring", "kv-all-gather"],
    "kernel": ["eager", "eager-bmm", "flash", "mem-efficient", "npu-fusion", "auto"],
    "seq_len": [4096],
    "micro_batch": [2],
    "sp": [2],
    "sp_inside": [2],
    "tp": [2],
    "pp": [2],
    "ep": [2],
    "etp": [2],
    "dp": [16],
    "micro_batches": [3],
    "virtual_stages": [2],
    "micro_batch_group": [4],
    "first_layers": [10],
    "last_layers": [10],
    "pipeline_layout": ["Et*13|t*14L"],
    "schedule": ["gpipe"],
    "stage": [1],
    "sharding": ["ddp", "fsdp", "zero1", "zero2"],
    "remat_layers": [4],
    "replicas": [2],
    "reshard": ["off"],
    "prefetch": [1],
    "multi_rank_bucket_allreduce": ["off"],
    "optimizer_offload": [50],
    "host_memory": [2**40],
    "optimizer": [name for name in OPTIMIZERS if name != defaults.OPTIMIZER],
    "gradient_dtype": ["bf16"],
    "moment_dtype": ["bf16"],
    "main_weights": ["remainders"],
    "vocab_multiple": [1000],
    "imbalance_percent": [150, "worst"],
    "down_projections": ["sharded"],
    "layers": [2],
    "dtype": ["fp32"],
    "v_layout": ["contiguous"],
    "value_padding": ["qk"],
    "attention_layout": ["bsht", "bnsd"],
    "softmax_dtype": ["fp32"],
    "mask": ["tensor"],
    "names": ["held"],
    "idle_mlp": [8192],
    "mtp": [1],
    "norm": ["composite"],
    "causal": [False],
    "remat": ["full", "core_attn", "mlp", "moe", "shared_experts", "mla_up_proj", "layernorm", "moe_act"],
    "profile": ["megatron"],
    "dispatcher": ["deepep", "hybridep"],
    "shared_overlap": ["on"],
    "rope_fusion": ["off"],
    "attention_backend": ["unfused", "unfused-in-place"],
    "cross_entropy": ["no-upcast", "in-place", "native-fused", "fused", "chunked", "te-in-place", "te-fp32"],
    "moe_style": ["torchtitan", "transformers"],
    "loss_chunks": [3],
    "other_memory": [2**30],
    "reserve": [{"runtime context": 2**31}],
    "fragmentation_percent": [7],
    "devices_per_node": [4],
    "axis_order": ["tp-cp-dp-ep-pp"],
    "inter_node_gb_s": [11],
    "graphs": ["on"],
    "launch_floor": [0],
    "tp_overlap": ["on"],
    "expert_overlap": ["on"],
    "gradient_overlap": ["on"],
    "gather_overlap": ["on"],
    "p2p_overlap": ["on"],
    "tokens": [10**12],
    "price": ["2.10"],
    "dims": [{"v_head_dim": 64}],
    "facts": [{"num_experts_per_token": 4}, {"other_layer_bytes": 5}],
}
ASKED = {"model", "device", "scope", "form", "published"}  # what is asked about, and no way to answer it
MODEL: dict[str, Any] = {"model": "moonlight-16b-a3b", "device": "h100-80gb", "seq_len": 8192, "ep": 8, "dp": 8}
BLOCK: dict[str, Any] = {"scope": "attention", "model": "deepseek-v3", "device": "a100-80gb", "seq_len": 8192}
BASES: dict[str, dict[str, Any]] = {
    "reference": {**MODEL, "form": "explicit", "micro_batches": 8},
    "eager": {**MODEL, "form": "explicit", "kernel": "eager"},
    "megatron": {**MODEL, "form": "explicit", "profile": "megatron"},
    "no device": {**MODEL, "device": None, "form": "absorbed"},
    "one rank": {"model": "deepseek-v2-lite", "device": "h100-80gb", "seq_len": 8192, "form": "laga"},
    "block": {**BLOCK, "form": "explicit"},
    "eager block": {**BLOCK, "form": "laga", "kernel": "eager"},
    "block on one rank": {**BLOCK, "device": "910b-64gb", "form": "absorbed", "sp": 1},
    "block without a device": {**BLOCK, "device": None, "form": "absorbed"},
}


def test_every_setting_is_walked():
    assert VALUES.keys() == PlanSettings.model_fields.keys() - ASKED


@cache
def planned(base: str) -> Result:
    return mla_cost.plan(**BASES[base]).results[0]


def figures(row: Result) -> tuple[Any, ...]:
    verdict = row.verdict and (row.verdict.status, row.verdict.required_bytes, row.verdict.usable_bytes)
    return row.memory, row.communication, row.flops, row.time, verdict


def priced_as(row: Result, field: str, value: Any) -> bool:
    """Whether the row says that this is what was priced."""
    own = {"scheme": row.scheme, "kernel": row.kernel, "profile": row.profile}
    return own.get(field, row.settings.get(field)) == value


def outcome(base: str, field: str, value: Any) -> str:
    try:
        row = mla_cost.plan(**{**BASES[base], field: value}).results[0]
    except InputError as error:
        return "refused" if field in str(error) or str(value) in str(error) else f"refused for another thing: {error}"
    if row.memory.saved_bytes is None:
        return "refused"
    if figures(row) != figures(planned(base)):
        return "changes figures"
    (name,) = [f"{field}.{key}" for key in value] if field in {"dims", "facts"} else [field]
    if any(note.startswith(name) and "no effect" in note for note in row.notes):
        return "noted"
    return "priced as asked" if priced_as(row, field, value) else "dropped"


@pytest.mark.parametrize("base", BASES)
def test_no_setting_is_dropped_without_a_word(base):
    walked = [(field, value) for field, values in VALUES.items() for value in values]
    found = {
        (field, str(value)): outcome(base, field, value) for field, value in walked if BASES[base].get(field) != value
    }
    said = {"refused", "changes figures", "noted", "priced as asked"}
    automatic = {("kernel", "auto")} if "kernel" not in BASES[base] else set()  # the default itself
    assert {each: why for each, why in found.items() if why not in said and each not in automatic} == {}


def test_kernel_auto_keeps_the_value_padding_that_was_asked_for():
    """Moonlight on 8 H100: flash with V widened to 192 keeps 16.4 GiB where the unpadded one keeps 15.5."""
    for asked in (MODEL, {**BLOCK, "device": "h100-80gb"}):
        base: dict[str, Any] = {**asked, "form": "explicit"}
        auto, flash = (
            mla_cost.plan(**base, value_padding="qk"),
            mla_cost.plan(**base, value_padding="qk", kernel="flash"),
        )
        plain = mla_cost.plan(**base)
        saved = [study.results[0].memory.saved_bytes for study in (auto, flash, plain)]
        assert auto.results[0].kernel == "flash"
        assert saved[0] == saved[1]
        assert (saved[1] or 0) > (saved[2] or 0)
        swept = mla_cost.sweep(**base, value_padding="qk", over={"micro_batch": [1]})[0]
        assert (swept["kernel"], swept["saved_bytes"]) == ("flash", saved[0])


def test_a_padding_that_no_fused_kernel_trains_with_leaves_eager():
    """V wider than Q and K cannot be widened to them, and Ascend has no fused kernel beside the one that pads."""
    wide = {**BLOCK, "device": "910b-64gb", "form": "explicit", "dims": {"v_head_dim": 256}}
    row = mla_cost.plan(**wide, value_padding="qk").results[0]
    reported = " ".join(row.notes)
    assert row.kernel == "eager"
    assert "no fused kernel that we know of trains it there with value_padding qk" in reported
    assert "value_padding qk: no effect (kernel eager takes V as wide as it is)" in reported


# ---- commands

LITE = ["--model", "deepseek-v2-lite", "--device", "h100-80gb", "--form", "explicit"]
BLOCKS = ["--scope", "attention"]
FEW = ["--devices", "8", "--global-batch", "8", "--seq-len", "4k", "--tp", "1", "--sp", "1", "--pp", "1,2"]
PLAN = {"attention": ["plan", *LITE, *BLOCKS], "model": ["plan", *LITE]}
# command, the scope whose plan ends alike ("": it looks for degrees of its own, or prices none), one of how many
# settings is walked and from which on: what takes long is sampled, each command's settings others than the next one's
COMMANDS: dict[str, tuple[list[str], str, slice]] = {
    "sweep": (["sweep", *LITE, "--over", "micro_batch=1,2"], "model", slice(0, None, 3)),
    "sweep, blocks": (["sweep", *LITE, *BLOCKS, "--over", "micro_batch=1,2"], "attention", slice(1, None, 3)),
    "terms": ([*PLAN["model"], "--explain-term", "required"], "model", slice(0, None, 2)),
    "terms, blocks": ([*PLAN["attention"], "--explain-term", "allocated"], "attention", slice(1, None, 2)),
    "fit": (["fit", *LITE, "--max-seq-len", "16k"], "", slice(2, None, 6)),
    "fit, blocks": (["fit", *LITE, *BLOCKS, "--max-seq-len", "16k"], "", slice(0, None, 3)),
    "search": (["search", *LITE, *FEW, "--micro-batch", "1"], "", slice(1, None, 23)),
    "explain": (["explain", "explicit", "--model", "deepseek-v2-lite"], "", slice(None)),
    "levers": ([*PLAN["model"], "--levers"], "model", slice(12, None, 64)),
    "levers, blocks": ([*PLAN["attention"], "--levers"], "attention", slice(3, None, 9)),
    "plot": ([*PLAN["model"], "--plot", "FILE"], "model", slice(7, None, 19)),
    "plot, blocks": ([*PLAN["attention"], "--plot", "FILE"], "attention", slice(2, None, 11)),
}
WALKED = [row for row in TABLE.values() if row.name not in ASKED]


def words(command: str, row: Setting) -> list[str]:
    """The setting with its row's example, by its flag where the command has one, else by --set."""
    example = row.example.strip("'")
    if row.kind == "mapping":
        return ["--set", example]
    if row not in offered(command):
        head = f"{row.name}." if row.kind == "entries" else f"{row.name}="
        return ["--set", f"{head}{example or 'false'}"]
    return [f"--no-{row.name}"] if row.kind == "switch" else [row.flags[0], example]


def ended(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> int:
    """The exit code; nothing but InputError's one line is complained of, beside where a picture went."""
    with pytest.raises(SystemExit) as ending:
        main(arguments)
    err = capsys.readouterr().err
    assert len(err.splitlines()) <= 1, err
    assert err == "" or err.startswith("mla-cost: ")
    return int(ending.value.code or 0)


PLANNED: dict[tuple[str, str], int] = {}  # exit codes of plan


def planned_code(capsys: pytest.CaptureFixture[str], scope: str, row: Setting) -> int:
    if (scope, row.name) not in PLANNED:
        PLANNED[scope, row.name] = ended(capsys, [*PLAN[scope], *words("plan", row)])
    return PLANNED[scope, row.name]


def test_every_setting_is_walked_by_a_command_that_prices() -> None:
    """The commands whose end is compared with that of a plan go over all settings between them."""
    walked = {row.name for _, scope, part in COMMANDS.values() if scope for row in WALKED[part]}
    assert walked == {row.name for row in WALKED}


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_takes_every_setting_as_plan_does(capsys, tmp_path, name):
    command, scope, part = COMMANDS[name]
    command = [str(tmp_path / "picture.svg") if word == "FILE" else word for word in command]
    found, wanted = {}, {}
    for row in WALKED if EXHAUSTIVE else WALKED[part]:
        if any(word.startswith(f"{row.name}=") for word in command):
            continue  # the command goes over it
        found[row.name] = ended(capsys, [*command, *words(command[0], row)])
        wanted[row.name] = planned_code(capsys, scope, row) if scope else found[row.name]
    assert found == wanted
    assert {*found.values()} <= {0, 2}


def test_a_search_refuses_what_follows_and_goes_over_what_is_set(capsys):
    search, _, _ = COMMANDS["search"]
    assert ended(capsys, [*search, "--set", "dp=8"]) == 2
    without = [word for pair in zip(search[1::2], search[2::2], strict=True) if pair[0] != "--tp" for word in pair]
    said = []
    for asked in (["--tp", "2"], ["--set", "tp=2"]):
        with pytest.raises(SystemExit):
            main(["search", *without, *asked, "--format", "csv"])
        said.append(capsys.readouterr().out)
    assert said[0] == said[1]
    assert said[0].count("\n") > 1


@pytest.mark.parametrize("scope", ["attention", "model"])
def test_kernel_auto_is_a_value_to_go_over(scope):
    """On devices and widths that have other kernels each; every row is the plan's own."""
    over: dict[str, Any] = {"kernel": ["auto", "eager"], "dims.v_head_dim": [64, 256], "dtype": ["bf16", "fp32"]}
    devices = ["a100-80gb", "910b-64gb", "mi300x"]
    study = mla_cost.sweep("deepseek-v2-lite", devices, form="all", scope=scope, seq_len=4096, over=over)
    assert len({row["kernel"] for row in map(study.row, range(len(study)))}) > 3
    for row in map(study.row, range(0, len(study), 5)):
        dims = {"v_head_dim": row["dims.v_head_dim"]}
        asked = {name: row[name] for name in ("form", "dtype", "device")}
        asked["kernel"] = "auto" if row["kernel"] != "eager" else "eager"
        (planned,) = mla_cost.plan("deepseek-v2-lite", scope=scope, seq_len=4096, dims=dims, **asked).results
        if row["kernel"] != "eager":
            assert (row["kernel"], row["saved_bytes"]) == (planned.kernel, planned.memory.saved_bytes)
        assert planned.verdict is None or row["status"] == planned.verdict.status or row["kernel"] == "eager"


def test_a_formula_of_kernel_auto_is_that_of_the_kernel_it_stands_for(capsys):
    def reported(*arguments: str) -> str:
        with pytest.raises(SystemExit):
            main(["explain", "laga", *arguments])
        return capsys.readouterr().out

    assert reported("--kernel", "auto") == reported("--kernel", "eager") == reported()
    point = ["--model", "deepseek-v3", "--sp", "8"]
    fused = reported(*point, "--kernel", "flash")
    assert fused != reported(*point)


# ---- what a pipeline refuses is a row


def test_zero2_in_a_pipeline_is_an_illegal_row(capsys):
    found = mla_cost.plan(**{**MODEL, "form": ("explicit", "laga")}, pp=3, sharding="zero2").results
    assert [row.verdict.status for row in found if row.verdict] == ["illegal", "illegal"]
    assert all(
        row.verdict and "change sharding to zero1 or distributed, or pp to 1" in row.verdict.reason for row in found
    )
    for change in ({"sharding": "zero1"}, {"sharding": "distributed"}, {"pp": 1}):
        for row in mla_cost.plan(**{**MODEL, "form": "laga", "pp": 3, "sharding": "zero2", **change}).results:
            assert row.verdict is not None
            assert row.verdict.status != "illegal"
    with pytest.raises(SystemExit) as ending:
        main(["plan", *LITE, "--pp", "3", "--sharding", "zero2", "--format", "json"])
    out, err = capsys.readouterr()
    assert ending.value.code == 2
    assert '"status": "illegal"' in out
    assert "zero2 shards gradients" in out
    assert "zero2 shards gradients" in err
