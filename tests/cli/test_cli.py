"""The command line, in process where that is enough: what each flag does, what is printed, how it ends."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mla_cost.cli import COMMANDS, main
from mla_cost.inputs.table import TABLE

HF = Path(__file__).parents[1] / "fixtures" / "hf"
FORMS = ("explicit", "absorbed", "laga")
QUANTITIES = ("saved", "peak", "payload", "wire", "flops")
GIB = 2**30
COLOUR = re.compile(r"\x1b\[[0-9;]*m")
PAINTED = re.compile(r"\x1b\[(?:[0-9]+;)*(?:3[0-8]|4[0-8]|9[0-7]|10[0-7])(?:;[0-9]+)*m")  # a colour, not bold or dim
USER_MODEL = """\
title: Mine
num_layers: 4
dims: {hidden: 512, heads: 8, q_lora_rank: null, kv_lora_rank: 64,
       qk_nope_head_dim: 16, qk_rope_head_dim: 8, v_head_dim: 16}
"""


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch):
    for name in ("COLUMNS", "FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE", "CLICOLOR_FORCE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def cli(capsys):
    """Runs the command line: what it printed, its exit code and its complaints.

    A plan is one of the attention block unless it says otherwise, since most of its flags are about that.
    """

    def run(*arguments: str, code: int = 0) -> str:
        given = [str(argument) for argument in arguments]
        if given[:1] == ["plan"] and not {"--scope", "--help"} & {*given}:
            given += ["--scope", "attention", *([] if "--kernel" in given else ["--kernel", "eager"])]
        with pytest.raises(SystemExit) as ended:
            main(given)
        out, err = capsys.readouterr()
        assert (ended.value.code, err if code == 0 else "") == (code, "")
        return out or err

    return run


@pytest.fixture
def answer(cli):
    """The JSON of a plan."""

    def run(*arguments: str, code: int = 0) -> dict[str, Any]:
        return json.loads(cli("plan", "--format", "json", *arguments, code=code))

    return run


def process(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    keep = {name: value for name, value in os.environ.items() if name not in {"COLUMNS", "FORCE_COLOR", "NO_COLOR"}}
    code = "from mla_cost.cli import main; main()"
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env=keep | environment,
    )


def rows(plan: dict[str, Any]) -> dict[tuple[str | None, str], dict[str, Any]]:
    return {(row["device"], row["form"]): row for row in plan["results"]}


# ---- plan with no argument


def test_plan_without_arguments_prices_three_forms_on_both_devices(answer):
    plan = answer()
    assert [(row["device"], row["form"]) for row in plan["results"]] == [
        (device, form) for device in ("910b-64gb", "a100-80gb") for form in FORMS
    ]
    assert {name: plan["inputs"][name] for name in ("model", "seq_len", "sp", "micro_batch", "dtype", "kernel")} == {
        "model": "deepseek-v3",
        "seq_len": 16384,
        "sp": 8,
        "micro_batch": 1,
        "dtype": "bf16",
        "kernel": "eager",
    }
    for row in plan["results"]:
        assert row["settings"]["remat"] == "none"
        assert row["settings"]["mask"] == "none"
        assert row["settings"]["causal"] is True
        assert row["settings"]["layers"] == 1


def test_the_table_says_what_the_json_says(cli, answer):
    text, found = cli("plan"), rows(answer())
    for (_, form), row in found.items():
        memory, sent = row["memory"], row["communication"]
        amounts = [memory[f"{name}_bytes"] / GIB for name in ("saved", "peak", "allocated_peak")]
        moved = [sent[phase]["wire_bytes"] / GIB for phase in ("forward", "backward")]
        numbers = [f"{x:,.2f}" for x in amounts] + [f"{x:.3f}" for x in moved]
        assert re.search(rf"^{form} +{' +'.join(numbers)}  ", text, re.MULTILINE), (form, numbers)


def test_the_table_tells_the_parts_of_the_regression_apart(cli):
    text = cli("plan")
    lines = [line.strip() for line in text.splitlines()]
    assert any(re.fullmatch(r"absorbed +n x d_c intermediates +\+0\.\d\d +\+0\.\d\d", line) for line in lines)
    assert "saved S x S copies     +8.00      0" in lines  # 2 bytes x 16384^2 x 16 heads = 8 GiB; freed at the peak
    assert "softmax workspace          0  +8.00" in lines
    assert "weight-gradient reduction" in text
    assert re.search(r"^ +a100-80gb absorbed mem-efficient ", text, re.MULTILINE)
    assert re.search(r"^ +910b-64gb absorbed npu-fusion ", text, re.MULTILINE)


def test_one_block_fits_never_the_model(cli):
    text = cli("plan")
    assert text.count("one block fits") == 6
    assert "model fits" not in text


@pytest.mark.parametrize(
    "arguments",
    [
        ["plan"],
        ["plan", "--layers", "61", "--seq-len", "65536"],
        ["plan", "--kernel", "flash", "--v-layout", "contiguous"],
        ["plan", "--sp", "1", "--seq-len", "4096"],
        ["plan", "--model", "openpangu-ultra-moe-718b", "--device", "910b4-32gb,mi300x"],
        ["explain", "absorbed", "--quantity", "peak"],
        ["explain", "absorbed", "--quantity", "flops", "--model", "deepseek-v3"],
        ["models"],
        ["devices"],
        ["show", "910b-64gb"],
        ["show", "deepseek-v3"],
    ],
)
def test_80_columns_suffice_and_a_pipe_gets_no_codes(cli, arguments):
    text = cli(*arguments)
    assert max(map(len, text.splitlines())) <= 80
    assert "\x1b" not in text


def test_a_pipe_has_80_columns_or_those_that_columns_says(cli, monkeypatch):
    model = "plan moonlight-8-h100 --form explicit --bars --scope model"
    rest = "show h100-80gb|show kimi-k2|explain laga|fit --scope attention --form laga"
    for text in ("plan", model, "models", "devices", "plans", *rest.split("|")):
        line = text.split()
        for columns in ("200", "60"):
            monkeypatch.setenv("COLUMNS", columns)
            printed = cli(*line)
            assert max(map(len, printed.splitlines())) <= int(columns), line
            assert "…" not in printed
            assert not re.search(r"(?m)[ \t]+$", printed), line
    monkeypatch.setenv("COLUMNS", "many")
    assert max(map(len, cli("plan").splitlines())) <= 80


def test_no_color_is_respected_in_a_terminal():
    coloured = process("plan", FORCE_COLOR="1", TERM="xterm-256color")
    plain = process("plan", FORCE_COLOR="1", NO_COLOR="1", TERM="xterm-256color")
    piped = process("plan")
    assert PAINTED.search(coloured.stdout)  # the check can fail
    assert not PAINTED.search(plain.stdout)
    assert "\x1b" not in piped.stdout
    assert COLOUR.sub("", plain.stdout) == piped.stdout


def test_a_reader_that_goes_away_is_no_error():
    code = "from mla_cost.cli import main; main(['plan'])"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as running:
        assert running.stdout is not None
        assert running.stderr is not None
        running.stdout.close()
        assert running.stderr.read() == b""


@pytest.mark.parametrize("output", ["table", "json"])
def test_a_closed_output_is_no_error(output):
    command = f'{sys.executable} -c "from mla_cost.cli import main; main()" plan --format {output} >&-'
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=False, timeout=60)  # noqa: S602
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device that is always full")
@pytest.mark.parametrize("output", ["table", "json"])
def test_a_full_disk_is_one_line(output):
    code = "from mla_cost.cli import main; main()"
    command = [sys.executable, "-c", code, "plan", "--format", output]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False, timeout=60)
    assert done.returncode == 1
    assert done.stderr.startswith("mla-cost: ")
    assert len(done.stderr.splitlines()) == 1


# ---- flags: (arguments, the input they set, its value)

FLAGS = [
    (["--model", "kimi-k2"], "model", "kimi-k2"),
    (["--device", "h100-80gb"], "device", ["h100-80gb"]),
    (["--device", "h100-80gb,910B3"], "device", ["h100-80gb", "910b-64gb"]),
    (["--device", "h100-80gb", "--device", "mi300x"], "device", ["h100-80gb", "mi300x"]),
    (["--device", "none"], "device", []),
    (["--seq-len", "4096"], "seq_len", 4096),
    (["--micro-batch", "2"], "micro_batch", 2),
    (["--sp", "4"], "sp", 4),
    (["--cp", "4"], "sp", 4),
    (["--context-parallel-size", "4"], "sp", 4),
    (["--tp", "1"], "tp", 1),
    (["--pp", "1"], "pp", 1),
    (["--ep", "1"], "ep", 1),
    (["--etp", "2", "--dp", "2", "--scope", "model"], "etp", 2),
    (["--dp", "1"], "dp", 1),
    (["--sharding", "zero1", "--scope", "model"], "sharding", "zero1"),
    (["--micro-batches", "4", "--scope", "model"], "micro_batches", 4),
    (["--form", "laga"], "form", ["laga"]),
    (["--form", "laga,explicit"], "form", ["laga", "explicit"]),
    (["--form", "all"], "form", list(FORMS)),
    (["--scheme", "kv-gather", "--form", "explicit"], "scheme", "kv-gather"),
    (["--kernel", "eager-bmm"], "kernel", "eager-bmm"),
    (["--dtype", "fp32"], "dtype", "fp32"),
    (["--layers", "4"], "layers", 4),
    (["--v-layout", "contiguous"], "v_layout", "contiguous"),
    (["--value-padding", "qk"], "value_padding", "qk"),
    (["--attention-layout", "bnsd"], "attention_layout", "bnsd"),
    (["--softmax-dtype", "fp32"], "softmax_dtype", "fp32"),
    (["--mask", "tensor"], "mask", "tensor"),
    (["--norm", "composite"], "norm", "composite"),
    (["--remat", "full"], "remat", "full"),
    (["--names", "held"], "names", "held"),
    (["--idle-mlp", "8192", "--scope", "attention"], "idle_mlp", 8192),
    (["--scope", "model", "--mtp", "0"], "mtp", 0),
    (["--scope", "model", "--pp", "2", "--virtual-stages", "2", "--micro-batches", "4"], "virtual_stages", 2),
    (["--scope", "model", "--pp", "2", "--pipeline-layout", "Et*31|t*30mL"], "pipeline_layout", "Et*31|t*30mL"),
    (["--profile", "reference"], "profile", "reference"),
    (["--causal"], "causal", True),
    (["--no-causal"], "causal", False),
    (["--other-memory", "2GiB"], "other_memory", 2 * GIB),
    (["--other-memory", "1000B"], "other_memory", 1000),
    (["--reserve", "runtime context=1GiB"], "reserve", {"runtime context": GIB}),
    (["--set", "seq_len=8192"], "seq_len", 8192),
    (["--scope", "attention"], "scope", "attention"),
]


@pytest.mark.parametrize(("arguments", "name", "value"), FLAGS, ids=[" ".join(row[0]) for row in FLAGS])
def test_a_flag_sets_its_input(answer, arguments, name, value):
    assert answer(*arguments)["inputs"][name] == value


def test_every_flag_of_plan_has_a_test(cli):
    listed = set(re.findall(r"(?<![\w-])--[a-z][a-z0-9-]*", cli("plan", "--help").partition("What is priced:")[2]))
    tested = {word for arguments, _, _ in FLAGS for word in arguments if word.startswith("--")}
    elsewhere = {"--levers", "--refused-levers", "--explain-term", "--stage", "--bars", "--plot", "--picture"}
    of_rows = {flag for row in TABLE.values() for flag in row.flags}  # tests/inputs/test_table.py reads each
    assert listed - tested - elsewhere - of_rows == {
        "--documents",  # tests/studies/test_documents.py
        "--format",
        "--require-fit",
        "--help",
        "--no-notes",
        "--quiet",
        "--trace",
        "--snapshot-out",
    }  # tested below


DIMS = {
    "hidden": 1024,
    "heads": 64,
    "q_lora_rank": 768,
    "kv_lora_rank": 256,
    "qk_nope_head_dim": 64,
    "qk_rope_head_dim": 32,
    "v_head_dim": 96,
}


@pytest.mark.parametrize("dim", DIMS)
def test_any_dim_can_be_set(answer, dim):
    plan = answer("--set", f"dims.{dim}={DIMS[dim]}")
    assert plan["inputs"]["dims"][dim] == DIMS[dim]
    before = answer()
    assert plan["results"] != before["results"]
    assert {name for name, value in plan["inputs"]["dims"].items() if value != before["inputs"]["dims"][name]} == {dim}


def test_half_the_heads_hold_half_the_probabilities(answer):
    plan = answer("--set", "dims.heads=64", "--form", "explicit")
    sizes = {t["name"]: t["bytes"] for t in plan["results"][0]["memory"]["tensors"]}
    assert sizes["probabilities"] == 2 * 16384 * 16384 * 64 // 8


def test_a_null_dim_takes_the_query_latent_away(answer):
    plan = answer("--set", "dims.q_lora_rank=null", "--form", "explicit")
    assert not [t for t in plan["results"][0]["memory"]["tensors"] if "latent" in t["name"] and t["name"][0] == "q"]
    # without a latent: one weight of hidden x heads x (nope + rope) in place of two
    lost = 1536 * (7168 + 128 * 192) + 1536
    gained = 7168 * 128 * 192
    before = answer("--form", "explicit")["results"][0]["memory"]["parameter_bytes"]
    assert plan["results"][0]["memory"]["parameter_bytes"] - before == 2 * (gained - lost)


# ---- files


def test_a_plan_file_and_flags_over_it(answer, tmp_path):
    file = tmp_path / "plan.yaml"
    file.write_text("model: kimi-k2\ndevice: a100-80gb\nseq_len: 8192\nsp: 4\nform: laga\ndims: {v_head_dim: 64}\n")
    inputs = answer(file)["inputs"]
    assert (inputs["model"], inputs["device"], inputs["form"]) == ("kimi-k2", ["a100-80gb"], ["laga"])
    assert (inputs["seq_len"], inputs["sp"], inputs["dims"]["v_head_dim"]) == (8192, 4, 64)
    over = answer(file, "--sp", "2", "--set", "dims.heads=32", "--device", "none")["inputs"]
    assert (over["seq_len"], over["sp"], over["device"]) == (8192, 2, [])
    assert (over["dims"]["v_head_dim"], over["dims"]["heads"]) == (64, 32)


def test_a_plan_names_the_model_file_beside_it(answer, tmp_path, monkeypatch):
    (tmp_path / "mine.yaml").write_text(USER_MODEL)
    (tmp_path / "plan.yaml").write_text("model: mine.yaml\nsp: 2\n")
    monkeypatch.chdir("/")
    inputs = answer(tmp_path / "plan.yaml")["inputs"]
    assert (inputs["model"], inputs["model_title"], inputs["dims"]["hidden"]) == ("mine", "Mine", 512)


def test_a_plan_may_be_json(answer, tmp_path):
    file = tmp_path / "plan.json"
    file.write_text('{"sp": 4, "device": ["a100-80gb"]}')
    assert answer(file)["inputs"]["sp"] == 4


def test_a_model_file_of_the_users_own(answer, tmp_path):
    file = tmp_path / "own.yaml"
    file.write_text(USER_MODEL)
    plan = answer("--model", file, "--sp", "1", "--seq-len", "64", "--form", "explicit", "--device", "none")
    weights = 8 * 24 * 512 + (64 + 8) * 512 + 64 + 8 * 32 * 64 + 512 * 8 * 16
    assert plan["results"][0]["memory"]["parameter_bytes"] == 2 * weights


def test_a_published_config(answer):
    inputs = answer("--model", HF / "deepseek_like.json")["inputs"]
    published = json.loads((HF / "deepseek_like.json").read_text())
    assert inputs["dims"]["heads"] == published["num_attention_heads"]
    assert inputs["dims"]["kv_lora_rank"] == published["kv_lora_rank"]


@pytest.mark.parametrize(("model", "mla", "every"), [(HF / "kimi_linear.json", 7, 27), ("kimi-linear-48b-a3b", 7, 27)])
def test_a_hybrid_model_says_how_many_of_its_layers_are_mla(cli, answer, model, mla, every):
    assert f"{mla} of its {every} layers are MLA" in cli("plan", "--model", model)
    inputs = answer("--model", model)["inputs"]
    assert (inputs["num_mla_layers"], inputs["num_layers"]) == (mla, every)
    assert "layers are MLA" not in cli("plan")


# ---- what some flags mean


def test_layers_in_words(cli):
    text = cli("plan", "--layers", "4", "--seq-len", "4096")
    assert "4 attention blocks" in text
    assert text.count("4 blocks fit,") == 6
    assert "one block fits" not in text
    assert "model fits" not in text


def test_tensor_parallelism_is_not_priced_yet(cli):
    assert "belongs to scope model" in cli("plan", "--tp", "2", code=2)


def test_sequence_parallel_is_answered_with_its_sentence(cli):
    said = cli("plan", "--sequence-parallel", code=2)
    for word in ("megatron_sp", "tp > 1", "--sp", "--cp", "--context-parallel-size"):
        assert word in said
    assert "--sequence-parallel" not in cli("plan", "--help")


def test_require_fit(cli, answer):
    small = ["--layers", "61"]
    assert {row["verdict"]["status"] for row in answer(*small)["results"]} == {"oom"}
    cli("plan", *small)
    assert "short" in cli("plan", *small, "--require-fit", code=1)
    cli("plan", "--require-fit")
    cli("plan", "--require-fit", "--device", "none", code=2)


def test_a_trace_is_written_beside_the_answer(cli, tmp_path):
    file = tmp_path / "step.json"
    asked = ("plan", "--form", "laga", "--device", "h100-80gb")
    assert cli(*asked, "--trace", file) == cli(*asked)
    events = json.loads(file.read_text(encoding="utf-8"))["traceEvents"]
    assert {"M", "X"} == {event["ph"] for event in events}
    assert "cannot be written" in cli(*asked, "-q", "--trace", tmp_path / "absent" / "step.json", code=2)


def test_a_predicted_snapshot_is_written_beside_the_answer(cli, tmp_path):
    file = tmp_path / "predicted.pickle"
    asked = ("--form", "laga", "--kernel", "eager", "--device", "h100-80gb", "--scope", "attention")
    assert cli("plan", *asked, "--snapshot-out", file) == cli("plan", *asked)
    compared = cli("snapshot", file, *asked)
    assert "0 only in the recording, 0 only in the plan" in " ".join(compared.split())  # it is the plan's own
    absent = tmp_path / "absent" / "predicted.pickle"
    assert "cannot be written" in cli("plan", "-q", *asked, "--snapshot-out", absent, code=2)


def test_one_fitting_row_is_enough_for_require_fit(answer):
    plan = answer("--layers", "4", "--require-fit")
    assert {row["verdict"]["status"] for row in plan["results"]} == {"fits", "oom"}


@pytest.mark.parametrize("device", ["910b-64gb", "none"])
def test_every_row_illegal_ends_with_2(capsys, device):
    with pytest.raises(SystemExit) as ended:
        main(["plan", "--scope", "attention", "--sp", "3", "--format", "json", "--device", device])
    out, err = capsys.readouterr()
    assert ended.value.code == 2
    for row in json.loads(out)["results"]:
        assert row["verdict"]["status"] == "illegal"
        assert row["memory"]["saved_bytes"] is None
        assert "nearest sp below is 2" in row["verdict"]["reason"]
    assert len(err.splitlines()) == 1
    assert "sp 3 does not divide seq_len 16384" in err


@pytest.mark.parametrize("device", ["910b-64gb", "none"])
def test_one_answered_row_ends_with_0(answer, device):
    plan = answer("--kernel", "flash", "--device", device)
    found = {row["form"]: row["memory"]["saved_bytes"] for row in plan["results"]}
    assert found["absorbed"] is None
    assert found["explicit"] > 0


def test_without_a_device_there_is_no_verdict(cli, answer):
    for row in answer("--device", "none")["results"]:
        assert row["verdict"] is None
        assert row["device"] is None
    assert "fits" not in cli("plan", "--device", "none")


def test_other_memory_and_reserve_move_the_verdict_exactly(answer):
    before = rows(answer("--device", "910b-64gb"))["910b-64gb", "laga"]["verdict"]
    after = rows(answer("--device", "910b-64gb", "--other-memory", "2GiB", "--reserve", "runtime context=1GiB"))[
        "910b-64gb", "laga"
    ]["verdict"]
    items = {item["name"]: item["bytes"] for item in before["basis"]}
    assert after["required_bytes"] - before["required_bytes"] == 2 * GIB
    assert after["usable_bytes"] - before["usable_bytes"] == 762_314_752 - GIB  # the device file's figure
    assert items["reserve: runtime context"] == -762_314_752
    assert items["other memory"] == 0


def test_v_layout_has_no_effect_where_an_exchange_copies_v(cli, answer):
    view, copied = rows(answer()), rows(answer("--v-layout", "contiguous"))
    key = ("910b-64gb", "explicit")
    assert view[key]["settings"]["v_layout_effect"] == "no effect: an exchange copies V"
    assert "explicit: v_layout: no effect (an exchange copies V)" in cli("plan")
    assert view[key]["memory"]["saved_bytes"] == copied[key]["memory"]["saved_bytes"]


def test_v_layout_has_an_effect_on_one_rank(cli, answer):
    at = ["--sp", "1", "--seq-len", "4096", "--device", "none", "--form", "explicit", "--kernel", "flash"]
    view, copied = answer(*at)["results"][0], answer(*at, "--v-layout", "contiguous")["results"][0]
    assert view["settings"]["v_layout"] == "view"
    assert copied["settings"]["v_layout"] == "contiguous"
    # a view of V keeps the buffer of k_nope and v, 128 x 256 wide; a copy is 128 x 128 wide
    assert view["memory"]["saved_bytes"] - copied["memory"]["saved_bytes"] == 2 * 4096 * 128 * 128
    assert "v_layout: no effect" not in cli("plan", *at)


# ---- numbers typed from the issue


@pytest.mark.parametrize(("layout", "saved"), [("contiguous", 765_984_768 + 32_768), ("view", 900_202_496 + 32_768)])
def test_published_flash_figures(answer, layout, saved):
    plan = answer(
        *("--kernel", "flash", "--seq-len", "4096", "--sp", "1", "--form", "explicit"),
        *("--device", "none", "--v-layout", layout),
    )
    memory = plan["results"][0]["memory"]
    assert memory["saved_bytes"] == saved
    assert sum(t["bytes"] for t in memory["tensors"] if t["saved"]) == saved


def test_traffic_of_deepseek_v3(answer):
    """81,920 elements per local token cross for explicit, 41,536 for the other two."""
    tokens, width = 2048, 2
    q, o, latent = 128 * 192, 128 * 128, 512 + 64
    found = rows(answer("--device", "none"))
    for form, handed, sent in (
        ("explicit", 2 * q + 2 * o, (2 * q + 2 * o) * 7 // 8),
        ("absorbed", q + o + latent, (q + o) * 7 // 8 + 7 * latent),
        ("laga", q + o + latent, (q + o) * 7 // 8 + 7 * latent),
    ):
        forward = found[None, form]["communication"]["forward"]
        assert forward == {"payload_bytes": tokens * width * handed, "wire_bytes": tokens * width * sent}
    payload = [found[None, form]["communication"]["forward"]["payload_bytes"] for form in FORMS]
    wire = [found[None, form]["communication"]["forward"]["wire_bytes"] for form in FORMS]
    assert round(payload[0] / payload[2], 3) == 1.972
    assert round(wire[0] / wire[2], 3) == 1.798


# ---- explain


@pytest.mark.parametrize("quantity", QUANTITIES)
@pytest.mark.parametrize("form", FORMS)
def test_explain_in_symbols(cli, form, quantity):
    text = cli("explain", form, "--quantity", quantity)
    assert "Holds for: sp > 1, more than one head per rank" in text.replace("\n", " ")
    assert "S: sequence length, all ranks together" in text or quantity == "wire"
    assert cli("explain", form, "--quantity", quantity, "--latex").count("\n") == 1


@pytest.mark.parametrize("quantity", QUANTITIES)
@pytest.mark.parametrize("form", FORMS)
def test_explain_in_numbers(cli, answer, form, quantity):
    at = ["--model", "deepseek-v3", "--sp", "8", "--seq-len", "16384"]
    reported = json.loads(cli("explain", form, "--quantity", quantity, "--format", "json", *at))
    assert reported["total"] == sum(term["value"] for term in reported["terms"])
    row = answer("--form", form, "--device", "none", "--no-causal")["results"][0]
    sent = [row["communication"][phase] for phase in ("forward", "backward")]
    assert (
        reported["total"]
        == {
            "saved": row["memory"]["saved_bytes"],
            "peak": row["memory"]["peak_bytes"],
            "payload": sum(phase["payload_bytes"] for phase in sent),
            "wire": sum(phase["wire_bytes"] for phase in sent),
            "flops": sum(row["flops"][phase]["executed"] for phase in ("forward", "backward")),
        }[quantity]
    )
    assert f"Total: {reported['total']:,}" in cli("explain", form, "--quantity", quantity, *at)


SIZES = {"S": 16384, "s": 2048, "P": 8, "b": 1, "n": 128, "l": 16, "h": 7168}
SIZES |= {"d_q": 1536, "d_c": 512, "k": 128, "r": 64, "v": 128}


@pytest.mark.parametrize("quantity", QUANTITIES)
@pytest.mark.parametrize("form", FORMS)
def test_each_terms_text_is_its_value(cli, form, quantity):
    """The text of a term, read as arithmetic over the declared symbols, gives the value beside it."""
    at = ["--model", "deepseek-v3", "--sp", "8"]
    reported = json.loads(cli("explain", form, "--quantity", quantity, "--format", "json", *at))
    for term in reported["terms"]:
        assert eval(term["formula"].replace("^", "**"), {}, dict(SIZES)) == term["value"], term  # noqa: S307


def test_explain_names_the_saved_tensors_of_explicit(cli):
    reported = json.loads(cli("explain", "explicit", "--format", "json"))
    found = {term["formula"] for term in reported["terms"]}
    assert {"2*S^2*b*l", "2*S*b*l*(k+r)", "2*s*b*h"} <= found


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--one", "sp"], "sp = 1"),
        (["--one", "heads"], "one head per rank"),
        (["--one", "batch"], "one sequence per micro-batch"),
        (["--one", "positions"], "one position per rank"),
        (["--without", "query-latent"], "no query latent"),
        (["--without", "rope"], "no rotated part"),
        (["--one", "sp", "--without", "rope"], "sp = 1"),
    ],
)
def test_explain_a_variant(cli, arguments, words):
    assert words in json.loads(cli("explain", "laga", "--format", "json", *arguments))["holds_for"]


def test_the_copy_of_the_probabilities_goes_with_the_order_or_with_one_head(cli):
    def copies(*arguments: str) -> int:
        reported = json.loads(cli("explain", "absorbed", "--format", "json", *arguments))
        return sum(term["formula"] in {"2*S^2*b*l", "2*S^2*b"} for term in reported["terms"])

    assert copies() == 2
    assert copies("--attention-layout", "bnsd") == 1
    assert copies("--kernel", "eager-bmm") == 1
    assert copies("--one", "heads") == 1


def test_explain_rejects_a_variant_beside_numbers(cli):
    cli("explain", "laga", "--one", "sp", "--sp", "8", code=2)


# ---- catalogues


def test_models_and_devices_list_the_catalogue(cli, checkout):
    for kind in ("models", "devices"):
        files = {path.stem for path in (checkout / "configs" / kind).glob("*.yaml")}
        assert {line.split(" ")[0] for line in cli(kind).splitlines()} >= files
        listed = json.loads(cli(kind, "--format", "json"))
        assert {entry["name"] for entry in listed[kind]} == files


def test_910b_64gb_says_that_it_is_the_910b3(cli):
    line = next(line for line in cli("devices").splitlines() if line.startswith("910b-64gb"))
    assert "910B3" in line
    assert "This is the 910B3" in cli("show", "910b-64gb").replace("\n", " ")
    assert "910B3" in cli("plan")


@pytest.mark.parametrize("name", ["deepseek-v3", "DeepSeek-V3", "deepseek-ai/DeepSeek-V3"])
def test_show_a_model_with_sources(cli, name):
    text = cli("show", name)
    assert text.startswith("deepseek-v3: ")
    assert re.search(r"^dims\.kv_lora_rank +yes +512", text, re.MULTILINE)
    assert re.search(r"^source: ", text, re.MULTILINE)
    assert json.loads(cli("show", name, "--format", "json"))["model"]["dims"]["kv_lora_rank"] == 512


# ---- the program itself


def test_help_lists_every_command(cli):
    for arguments in ([], ["--help"]):
        text = cli(*arguments)
        for name, line in COMMANDS.items():
            assert re.search(rf"^  {name} +{re.escape(line[:30])}", text, re.MULTILINE)


def test_version(cli):
    assert cli("--version").startswith("mla-cost")


def test_a_real_process_ends_as_it_should():
    good, bad = process("plan", "--format", "json"), process("plan", "--sp", "0")
    assert (good.returncode, good.stderr) == (0, "")
    assert json.loads(good.stdout)["schema"] == "mla-cost/plan/1"
    assert (bad.returncode, bad.stdout) == (2, "")
    assert bad.stderr == "mla-cost: sp: out of range, not 0; allowed: at least 1\n"
    assert process("plan", "--require-fit").returncode == 1  # one rank of the default plan holds too much


@pytest.mark.parametrize(
    ("line", "flag", "beside"),
    [
        ("explain laga --program --quantity peak", "--quantity", "--program"),
        ("explain laga --program --latex", "--latex", "--program"),
        ("explain laga --latex --format json", "--latex", "--format json"),
        ("plan --bars --format json", "--bars", "--format json"),
        ("plan --explain-term saved --levers", "--levers", "--explain-term"),
        ("plan --explain-term saved --require-fit", "--require-fit", "--explain-term"),
        ("plan --no-notes --format csv", "--no-notes", "--format csv"),
        ("plan -q --format json", "--quiet", "--format json"),
        ("plan -q --no-notes", "--no-notes", "--quiet"),
        ("sweep --over seq_len=4096 --output rows.csv --format csv", "--format", "--output"),
        ("sweep --over seq_len=4096 --seq-len 8192", "seq_len", "--seq-len"),
        ("sweep --over seq_len=4096 --set seq_len=8192", "seq_len", "--set"),
        ("search --pareto --format json", "--pareto", "--format json"),
        ("plan --set sp=4 --sp 2", "sp", "--set and by --sp"),
        ("search --tp 2 --set tp=4", "tp", "--set and by --tp"),
        ("plan --sp 2 --cp 4", "--sp or --cp", "given twice"),
        ("plan --set sp=2 --set sp=4", "--set sp", "given twice"),
        ("explain laga --layer moe", "--layer", "--program"),
        ("evidence --no-notes --format json", "--no-notes", "--format json"),
        ("plan --other-memory 20", "other_memory", "'20' has no unit; allowed: 20GiB, 20MiB or 20B"),
        ("plan --price abc", "price", "must be a price of a device-hour such as 2.10"),
        ("cache --device ''", "device", "unknown device"),
        ("evidence --quiet --format json", "--quiet", "--format json"),
        ("evidence --no-notes -q", "--no-notes", "--quiet"),
        ("validate --no-notes --format json", "--no-notes", "--format json"),
        ("validate --quiet --format json", "--quiet", "--format json"),
    ],
)
def test_a_flag_without_effect_is_refused_by_name(cli, line, flag, beside):
    message = cli(*shlex.split(line), code=2)
    assert flag in message
    assert beside in message


def test_an_empty_layer_is_no_layer(cli):
    assert "unknown layer ''" in cli("explain", "laga", "--program", "--layer", "", code=2)


def test_quiet_prints_nothing_and_answers_by_its_exit_code(cli):
    assert cli("plan", "-q") == ""
    assert cli("plan", "-q", "--require-fit", "--sp", "1", "--seq-len", "128k", "--device", "910b-64gb", code=1) == ""
    assert cli("fit", "--scope", "attention", "--form", "laga", "--quiet") == ""
    assert cli("sweep", "--scope", "attention", "--over", "seq_len=4096,8192", "-q") == ""


def test_without_notes_the_table_stays(cli):
    for line in ("plan --sp 8", "fit --scope attention --form laga", "sweep --scope attention --over sp=1,2"):
        whole, less = cli(*line.split()), cli(*line.split(), "--no-notes")
        assert set(less.splitlines()) < set(whole.splitlines())
    assert "Not in this scope" not in cli("plan", "--no-notes")


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_two_examples_that_parse(cli, command):
    from mla_cost.cli.options import EXAMPLES
    from mla_cost.cli.program import build

    text = cli(command, "-h")
    assert text == cli(command, "--help")
    assert len(EXAMPLES[command]) == 2
    for line, _ in EXAMPLES[command]:
        assert f"mla-cost {line}" in text
        program: Any = __import__("typer").main.get_command(build(line.split()))
        program.commands[command].make_context(command, line.split()[1:])  # parses, runs nothing
        if command in {"models", "devices", "plans", "show", "explain"}:
            assert cli(*line.split())


def test_python_m_is_the_command():
    found = subprocess.run(
        [sys.executable, "-m", "mla_cost", "-h"], capture_output=True, text=True, check=False, timeout=60
    )
    assert found.returncode == 0
    assert all(line in " ".join(found.stdout.split()) for line in COMMANDS.values())


def test_rows_that_differ_show_in_what(cli, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    heading, *_ = cli("sweep", "--scope", "attention", "--over", "kernel=auto,flash").splitlines()
    assert {"kernel", "scheme", "device"} <= set(heading.split())
    line = "sweep --scope attention --form explicit --device a100-80gb --over kernel=auto,flash,eager --no-notes"
    heading, _, *rows = cli(*line.split()).splitlines()
    at = heading.split().index("value_padding")
    assert [row.split()[at] for row in rows[:3]] == ["qk", "none", "none"]


def test_what_was_assumed_is_not_verified(cli, tmp_path):
    text = json.loads((HF / "deepseek_like.json").read_text())
    text.pop("num_nextn_predict_layers", None)
    file = tmp_path / "config.json"
    file.write_text(json.dumps(text | {"model_type": "of_my_own"}))
    shown = cli("show", file)
    assert "assumed: num_nextn_predict_layers is not in the file" in shown
    assert not re.search(r"(?m)^assumed\.", shown)


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_bash_completes_commands_flags_and_names(cli, tmp_path):
    script = tmp_path / "completion.bash"
    script.write_text(cli("completion", "bash"))
    ask = 'source "$0"; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _mla_cost 2>/dev/null; echo "${COMPREPLY[@]}"'
    for words, answer in (
        ("mla-cost pl", "plan plans"),
        ("mla-cost plan --micro-batches", "--micro-batches"),
        ("mla-cost plan --model moonl", "moonlight-16b-a3b"),
        ("mla-cost search moon", "moonlight-8-h100"),
        ("mla-cost plan --set seq", "seq_len="),
        ("mla-cost show h100", "h100-80gb"),
    ):
        line = ["bash", "-c", ask, str(script), *words.split()]
        assert subprocess.run(line, capture_output=True, text=True, check=True).stdout.strip() == answer
    fish = cli("completion", "fish").splitlines()
    assert "complete -c mla-cost -n '__fish_seen_subcommand_from plan' -l mask -xa 'none tensor'" in fish
