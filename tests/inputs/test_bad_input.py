"""Everything a user can get wrong: one line on stderr, nothing on stdout, exit code 2, and words that help."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

import mla_cost
from mla_cost.cli import main

MODEL = "dims: {hidden: 512, heads: 8, q_lora_rank: null, kv_lora_rank: 64, qk_nope_head_dim: 16, qk_rope_head_dim: 8"
WHOLE = MODEL + ", v_head_dim: 16}\n"


@pytest.fixture
def refused(capsys):
    """Runs a command line that must be refused; the message without the program's name."""

    def run(*arguments: object, faults: int = 1) -> str:
        with pytest.raises(SystemExit) as ended:
            main([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        assert ended.value.code == 2
        assert out == ""
        assert err.startswith("mla-cost: ")
        assert err.endswith("\n")
        assert [line.startswith("mla-cost: ") for line in err.splitlines()] == [True] * faults, err
        assert "Traceback" not in err
        return err.removeprefix("mla-cost: ").strip()

    return run


# ---- the command line: (arguments, what the message must say)

LINES = [
    # what typer reads
    ("plan --seq-len foo", ["--seq-len", "'foo'", "whole number"]),
    ("plan --seq-len=1.5", ["--seq-len", "'1.5'", "whole number"]),
    ("plan --seq-len nan", ["--seq-len", "'nan'", "whole number"]),
    ("plan --layers 1e3", ["--layers", "'1e3'"]),
    ("plan --seq-lenn 5", ["unknown option --seq-lenn", "did you mean --seq-len"]),
    ("plan --bogus", ["unknown option --bogus", "mla-cost plan --help"]),
    ("plan --sp", ["'--sp'", "requires an argument"]),
    ("plan --require-fit=yes", ["'--require-fit'", "does not take a value"]),
    ("plan one.yaml two.yaml", ["two.yaml"]),
    ("explain", ["missing argument 'form'"]),
    ("show", ["missing argument 'name'"]),
    ("plann", ["unknown command 'plann'", "did you mean plan"]),
    ("zzz", ["unknown command 'zzz'", "allowed: plan, "]),
    ("--bogus", ["unknown option --bogus"]),
    # names
    ("plan --model deepsek-v3", ["unknown model 'deepsek-v3'", "did you mean", "deepseek-v3"]),
    ("plan --device a100-80gbs", ["unknown device 'a100-80gbs'", "a100-80gb"]),
    ("plan --device none,a100-80gb", ["unknown device 'none'"]),
    ("plan --form lga", ["unknown form 'lga'", "allowed: explicit, absorbed, laga", "did you mean laga?"]),
    ("plan --form all,laga", ["unknown form 'all'"]),
    ("plan --kernel flsh", ["unknown kernel 'flsh'", "mem-efficient", "did you mean flash?"]),
    ("plan --scheme ulises", ["unknown scheme 'ulises'", "did you mean ulysses?"]),
    ("plan --format yaml", ["--format", "'yaml'", "table, json"]),
    ("plan --dtype int8", ["dtype", "'int8'", "'bf16', 'fp16' or 'fp32'"]),
    ("plan --v-layout copy", ["v_layout", "'copy'", "'view' or 'contiguous'"]),
    ("plan --value-padding all", ["value_padding", "'all'"]),
    ("plan --attention-layout tbnd", ["attention_layout", "'tbnd'"]),
    ("plan --softmax-dtype fp8", ["softmax_dtype", "'fp8'"]),
    ("plan --mask yes", ["mask", "'yes'"]),
    ("plan --remat mla_up", ["unknown remat 'mla_up'", "did you mean mla_up_proj (profile megatron)?"]),
    ("plan --mtp 0 --scope attention", ["mtp", "belongs to scope model"]),
    ("plan --mtp 1 --set facts.num_mtp_layers=0", ["facts.num_mtp_layers: contradicts mtp", "allowed: 1, or no mtp"]),
    ("plan --norm layer", ["norm", "'layer'", "'fused' or 'composite'"]),
    ("plan --scope moedl", ["scope", "'moedl'", "'attention'"]),
    ("explain lga", ["unknown form 'lga'", "did you mean laga?"]),
    ("explain laga --quantity sved", ["unknown quantity 'sved'", "allowed: saved, peak", "did you mean saved?"]),
    ("explain laga --kernel flsh", ["unknown kernel 'flsh'", "did you mean flash?"]),
    ("explain laga --one hed", ["one", "'hed'", "did you mean heads?"]),
    ("explain laga --without latent", ["without", "'latent'", "query-latent, rope"]),
    ("explain laga --format yaml", ["--format", "'yaml'"]),
    ("explain absorbed --kernel flash", ["flash", "shared key"]),
    ("explain absorbed --scheme ulysses", ["ulysses", "absorbed"]),
    ("show deepsek-v3", ["unknown model or device 'deepsek-v3'", "deepseek-v3"]),
    ("models --format yaml", ["--format", "'yaml'"]),
    ("devices --format yaml", ["--format", "'yaml'"]),
    # sizes
    ("plan --sp 0", ["sp", "not 0", "at least 1"]),
    ("plan --sp -1", ["sp", "not -1", "at least 1"]),
    ("plan --seq-len 0", ["seq_len", "not 0"]),
    ("plan --seq-len -4096", ["seq_len", "not -4096"]),
    ("plan --seq-len 99999999999999999999999", ["seq_len", "at most 1073741824"]),
    ("plan --micro-batch 0", ["micro_batch", "not 0"]),
    ("plan --layers 0", ["layers", "not 0"]),
    ("plan --layers 4097", ["layers", "at most 4096"]),
    ("plan --tp 0", ["tp", "not 0"]),
    ("plan --scope attention --tp 2", ["tp", "belongs to scope model"]),
    ("plan --tp 3", ["heads (128) is not divisible by tp (3)", "change tp to 2"]),
    ("plan --scope attention --sp 3", ["sp 3 does not divide seq_len 16384", "the nearest sp below is 2", "16386"]),
    ("plan --sp 3", ["seq_len 16384 does not split over sp 3", "change seq_len to 16386"]),
    ("plan --layers 4", ["layers", "the model scope has all layers", "scope attention"]),
    ("plan --scope attention --pp 4", ["pp", "belongs to scope model"]),
    ("plan --stage 1", ["stage", "no such stage", "allowed: 0"]),
    ("plan --sp 256", ["sp 256 does not divide 128 heads", "the nearest sp below is 128"]),
    ("plan --scope attention --kernel eager --sp 1 --seq-len 1073741824", ["2^53"]),
    ("plan --sp 1 --seq-len 1073741824 --kernel eager", ["2^53"]),
    ("plan --scope attention --kernel eager --layers 4096 --seq-len 4194304", ["2^53"]),
    ("plan --other-memory lots", ["other_memory", "'lots'", "2GiB"]),
    ("plan --other-memory nan", ["other_memory", "'nan'"]),
    ("plan --other-memory -1", ["other_memory", "'-1'"]),
    ("plan --other-memory 9999999999TB", ["other_memory", "between 0 and"]),
    ("plan --reserve HCCL=1GiB", ["reserve", "'HCCL'", "allowed: ", "HCCL buffers"]),
    ("plan --reserve HCCL", ["--reserve", "FIELD=VALUE", "'HCCL'"]),
    ("plan --reserve HCCL=nan", ["reserve", "nan"]),
    # --set
    ("plan --set heads=64", ["heads", "unknown key", "did you mean dims.heads?"]),
    ("plan --set dims.headz=64", ["dims.headz", "unknown key", "did you mean heads?"]),
    ("plan --set seq_lenn=64", ["seq_lenn", "did you mean seq_len?"]),
    ("plan --set dims.heads", ["--set", "'dims.heads'"]),
    ("plan --set dims.heads=", ["--set", "'dims.heads='"]),
    ("plan --set =4", ["--set", "'=4'"]),
    ("plan --set dims=4", ["dims", "must be a mapping"]),
    ("plan --set dims=4 --set dims.heads=4", ["dims", "must be a mapping"]),
    ("plan --set sp.heads=4", ["sp.heads", "dims, facts and reserve"]),
    ("plan --set dims.heads=0", ["dims.heads", "not 0", "at least 1"]),
    ("plan --set dims.heads=-8", ["dims.heads", "not -8"]),
    ("plan --set dims.heads=1.5", ["dims.heads", "whole number", "1.5"]),
    ("plan --set dims.heads=nan", ["dims.heads", "nan"]),
    ("plan --set dims.heads=inf", ["dims.heads", "inf"]),
    ("plan --set dims.heads=true", ["dims.heads", "true"]),
    ("plan --set dims.heads=many", ["dims.heads", "'many'"]),
    ("plan --set dims.heads=null", ["dims.heads", "null"]),
    ("plan --set dims.kv_lora_rank=99999999999", ["dims.kv_lora_rank", "at most 65536"]),
    ("plan --set dims.qk_rope_head_dim=63", ["dims.qk_rope_head_dim", "63", "multiple of 2"]),
    ("plan --set sp=1e3", ["sp", "whole number", "1000.0"]),
    (
        "plan --set facts.num_experts_per_token=257",
        ["facts.num_experts_per_token: a token cannot choose 257 of 256 experts; allowed: 0 to 256"],
    ),
    (
        "plan --set facts.num_dense_layers=62",
        ["facts.num_dense_layers: 62 dense layers are more than num_layers 61; allowed: 0 to 61"],
    ),
    (
        "plan --set facts.foo=1",
        ["facts.foo: unknown key; allowed: name, title, ", "num_layers, ", "num_routed_experts, "],
    ),
    ("plan --set facts.num_layer=1", ["facts.num_layer: unknown key; did you mean num_layers?"]),
    ("plan --set imbalance_percent=best", ["imbalance_percent: must be a whole number or 'worst', not 'best'"]),
    (
        "plan --set imbalance_percent=50",
        ["imbalance_percent: out of range, not 50; allowed: at least 100 or 'worst'"],
    ),
    (
        "plan --remat none+ --form explicit",
        ["unknown remat ''; allowed: none, full, core_attn, mlp, moe, shared_experts"],
    ),
    (
        "plan --remat bogus --profile megatron --kernel flash --form explicit --device h100-80gb",
        ["unknown remat 'bogus'; allowed: none, full, core_attn, mlp, moe, shared_experts, mla_up_proj, layernorm, "],
    ),
    ("plan --kernel flsh --form explicit", ["unknown kernel 'flsh'; allowed: auto, eager, ", "did you mean flash?"]),
    (
        "plan --form explicit --pp 2 --set pipeline_layout=Exyz",
        ["pipeline_layout: 'Exyz': at character 2, 'x': nothing of that name goes into a stage; allowed: E"],
    ),
    # together
    ("plan --require-fit --device none", ["--require-fit", "device"]),
    ("plan --form absorbed --kernel flash", ["absorbed", "flash", "mem-efficient"]),
    ("plan --form absorbed --scheme ulysses", ["absorbed", "ulysses", "latent-gather"]),
    ("plan --form laga --scheme ulysses", ["laga", "explicit"]),
    ("explain laga --sp 3", ["sp 3 does not divide"]),
    ("explain laga --sp 8 --one sp", ["--one"]),
    ("plan --kernel flash --value-padding qk --set dims.v_head_dim=256 --form explicit", ["256", "192"]),
]


@pytest.mark.parametrize(("line", "words"), LINES, ids=[line for line, _ in LINES])
def test_a_bad_command_line(refused, line, words):
    message = refused(*line.split(" "))
    for word in words:
        assert word in message


@pytest.mark.parametrize("option", ["--model", "--device", "--form", "--scheme", "--kernel"])
@pytest.mark.parametrize("name", ["", " ", "\n", "\x1b[31m", "x" * 100_000, "💥", "a\0b", "../..", "-"])
def test_odd_names(refused, option, name):
    message = refused("plan", option, name)
    assert "\x1b" not in message
    assert len(message) < 1000


# ---- files: (name, content, what the message must say)

FILES = [
    # numbers and types
    ("plan.yaml", "seq_len: 16x\n", ["seq_len", "'16x'", "whole number"]),
    ("plan.yaml", "seq_len: 4096.0\n", ["seq_len", "4096.0", "whole number"]),
    ("plan.yaml", "seq_len: true\n", ["seq_len", "true"]),
    ("plan.yaml", "seq_len: null\n", ["seq_len", "null"]),
    ("plan.yaml", "seq_len: [1]\n", ["seq_len", "a list"]),
    ("plan.yaml", "seq_len: {a: 1}\n", ["seq_len", "a mapping"]),
    ("plan.yaml", "seq_len: -1\n", ["seq_len", "-1", "at least"]),
    ("plan.yaml", "seq_len: 0\n", ["seq_len", "0", "at least"]),
    ("plan.yaml", "seq_len: 99999999999\n", ["seq_len", "99999999999", "at most 1073741824"]),
    ("plan.yaml", f"seq_len: {'9' * 5000}\n", ["line 1", "too large"]),
    ("plan.yaml", "seq_len: .nan\n", ["line 1", ".nan", "finite"]),
    ("plan.yaml", "seq_len: .inf\n", ["line 1", ".inf", "finite"]),
    ("plan.yaml", "other_memory: NaN\n", ["line 1", "NaN", "finite"]),
    ("plan.yaml", "other_memory: 1e999\n", ["line 1", "1e999", "finite"]),
    ("plan.yaml", "causal: yes\n", ["causal", "'yes'", "true or false"]),
    ("plan.yaml", "model: 5\n", ["model", "5", "text"]),
    ("plan.yaml", "model: []\n", ["model", "text"]),
    ("plan.yaml", "device: 5\n", ["device", "5", "list"]),
    ("plan.yaml", "device: [5]\n", ["device, entry 1", "5", "text"]),
    ("plan.yaml", "form: {laga: 1}\n", ["form", "a mapping"]),
    ("plan.yaml", "dims: [1]\n", ["dims", "mapping"]),
    ("plan.yaml", "dims: {heads: many}\n", ["dims.heads", "'many'"]),
    ("plan.yaml", "dims: {headz: 8}\n", ["dims.headz", "did you mean heads?"]),
    ("plan.yaml", "reserve: 5\n", ["reserve", "mapping"]),
    ("plan.yaml", "reserve: {runtime context: -1}\n", ["reserve.runtime context", "-1"]),
    ("plan.yaml", "dtype: int8\n", ["dtype", "'int8'"]),
    ("plan.yaml", "profile: mindspeed\n", ["profile", "'mindspeed'", "'reference'"]),
    # keys
    ("plan.yaml", "seq_lenn: 4096\n", ["seq_lenn", "unknown key", "did you mean seq_len?"]),
    ("plan.yaml", "zzz: 1\n", ["zzz", "unknown key"]),
    ("plan.yaml", "1: 2\n", ["1"]),
    ("plan.yaml", "? [a]\n: 2\n", ["line 1", "key"]),
    ("plan.yaml", "sp: 4\nseq_len: 8\nsp: 2\n", ["line 3", "'sp'", "twice"]),
    ("plan.json", '{"sp": 4, "sp": 2}', ["'sp'", "twice"]),
    # YAML that is none, or does too much
    ("plan.yaml", "sp:\t4\n", ["line 1", "tab"]),
    ("plan.yaml", "dims:\n\theads: 4\n", ["line 2", "tab"]),
    ("plan.yaml", "sp: [4\n", ["not valid YAML"]),
    ("plan.yaml", "sp: 4\n  seq_len: 3\n", ["line 2", "not valid YAML"]),
    ("plan.yaml", "- sp\n- 4\n", ["mapping"]),
    ("plan.yaml", "just words\n", ["mapping"]),
    ("plan.yaml", "5\n", ["mapping"]),
    ("plan.yaml", "# nothing but this\n", ["no value"]),
    ("plan.yaml", "", ["empty"]),
    ("plan.yaml", " \n\n", ["empty"]),
    ("plan.json", "", ["empty"]),
    ("plan.yaml", "sp: 4\n---\nsp: 2\n", ["line 3", "second document"]),
    ("plan.yaml", "model: &a x\nscheme: *a\n", ["line 2", "alias"]),
    ("plan.yaml", "!!python/object/apply:os.system ['true']\n", ["line 1", "tag"]),
    ("plan.yaml", "sp: !!int '4'\n", ["line 1", "tag"]),
    ("plan.yaml", "[" * 5000, ["nested"]),
    ("plan.json", "[" * 100_000, ["nested"]),
    # one format under the other's name
    ("plan.json", "sp: 4\n", ["not JSON", ".yaml"]),
    ("plan.json", '{"sp": 4', ["cut off"]),
    ("plan.json", '{"sp": 4, "model": "deep', ["cut off"]),
    ("plan.json", '{"sp": NaN}', ["NaN", "finite"]),
    ("plan.json", '{"sp": 1e999}', ["1e999", "finite"]),
    ("plan.json", '{"sp": 4,}', ["not valid JSON", "line 1"]),
    ("plan.json", "[1, 2]", ["mapping"]),
    ("plan.json", "null", ["no value"]),
    ("plan.txt", "sp: 4\n", [".yaml, .yml or .json"]),
    ("plan", "sp: 4\n", [".yaml, .yml or .json"]),
]


@pytest.mark.parametrize(("name", "content", "words"), FILES, ids=[f"{n} {c[:30]!r}" for n, c, _ in FILES])
def test_a_bad_plan_file(refused, tmp_path, name, content, words):
    (tmp_path / name).write_text(content, encoding="utf-8")
    message = refused("plan", tmp_path / name)
    assert str(tmp_path / name) in message
    for word in words:
        assert word in message.replace(str(tmp_path), "")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("form: []\n", ["form", "at least one"]),
        ("reserve: {runtime: 1}\n", ["reserve", "'runtime'", "allowed: runtime context"]),
        ("tp: 2\nscope: attention\n", ["tp", "belongs to scope model"]),
        ("model: deepsek-v3\n", ["'deepsek-v3'", "deepseek-v3"]),
        ("kernel: flsh\n", ["'flsh'", "did you mean flash?"]),
        ("remat: sometimes\n", ["remat", "'sometimes'", "none"]),
    ],
)
def test_a_plan_file_that_reads_well_and_asks_for_nonsense(refused, tmp_path, content, words):
    (tmp_path / "plan.yaml").write_text(content)
    message = refused("plan", tmp_path / "plan.yaml")
    for word in words:
        assert word in message


def test_the_file_is_named_only_for_what_it_states(refused, tmp_path):
    (tmp_path / "plan.yaml").write_text("sp: 4\nseq_len: 0\nreserve: {runtime context: -1}\n")
    over = ("--seq-len", "4096", "--reserve", "runtime context=1")
    reported = refused("plan", tmp_path / "plan.yaml", *over, "--tp", "0")
    assert reported == "tp: out of range, not 0; allowed: at least 1"
    assert "plan.yaml" not in refused("plan", tmp_path / "plan.yaml", *over, "--set", "facts=4")
    assert "plan.yaml: line 3, column 28: reserve.runtime context: " in refused(
        "plan", tmp_path / "plan.yaml", "--seq-len", "4096"
    )
    assert "plan.yaml: line 2, column 10: seq_len: out of range, not 0" in refused(
        "plan", tmp_path / "plan.yaml", *over[2:]
    )


def test_no_recomputation_policy_at_all(refused):
    assert "unknown remat ''; allowed: none, full, core_attn" in refused("plan", "--remat", "")


def test_flags_over_a_file_that_is_no_mapping_there(refused, tmp_path):
    for text in ("dims: 5\n", "dims: [a]\n", "reserve: words\n"):
        (tmp_path / "plan.yaml").write_text(text)
        assigned = ("--set", "dims.heads=4", "--reserve", "runtime context=1")
        assert "must be a mapping" in refused("plan", tmp_path / "plan.yaml", *assigned)


def test_json_under_a_yaml_name(refused, tmp_path):
    (tmp_path / "plan.yaml").write_text('{"sp": 4, "device": "none"}')
    assert "this is JSON under a YAML name" in refused("plan", str(tmp_path / "plan.yaml"))


def test_an_alias_bomb(refused, tmp_path):
    lines = ["a: &a [x, x, x, x, x, x, x, x, x]"]
    lines += [f"{name}: &{name} [{', '.join([f'*{before}'] * 9)}]" for before, name in zip("abcdefgh", "bcdefghi")]  # noqa: B905
    (tmp_path / "plan.yaml").write_text("\n".join(lines))
    assert "alias" in refused("plan", tmp_path / "plan.yaml")


@pytest.mark.parametrize("data", [b"sp: \xff4\n", "sp: 4\n".encode("utf-16"), b"\x00\x01\x02", b"sp: 4 # caf\xe9\n"])
def test_bytes_that_are_no_utf8_text(refused, tmp_path, data):
    (tmp_path / "plan.yaml").write_bytes(data)
    message = refused("plan", tmp_path / "plan.yaml")
    assert "plan.yaml" in message
    assert "UTF-8" in message or "not valid YAML" in message


def test_paths_that_are_no_file(refused, tmp_path):
    (tmp_path / "folder.yaml").mkdir()
    for name, words in (("missing.yaml", "no such file"), ("folder.yaml", "directory"), ("missing.json", "no such")):
        for arguments in (["plan", tmp_path / name], ["plan", "--model", tmp_path / name]):
            message = refused(*arguments)
            assert name in message
            assert words in message
    assert "directory" in refused("plan", tmp_path)
    assert "folder.yaml" in refused("plan", "--device", tmp_path / "folder.yaml")
    assert "folder.yaml" in refused("show", tmp_path / "folder.yaml")
    assert len(refused("plan", "x" * 5000 + ".yaml")) < 500


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
def test_a_pipe_is_not_waited_for(refused, tmp_path):
    os.mkfifo(tmp_path / "plan.yaml")
    assert "not a regular file" in refused("plan", tmp_path / "plan.yaml")


def test_a_file_of_100_mb_is_not_read(refused, tmp_path):
    for name in ("plan.yaml", "config.json"):
        path = tmp_path / name
        with path.open("wb") as file:
            file.truncate(100 * 10**6)  # sparse
        for arguments in (["plan", path], ["plan", "--model", path]):
            assert "100,000,000 bytes" in refused(*arguments)


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read(refused, tmp_path):
    (tmp_path / "plan.yaml").write_text("sp: 4\n")
    (tmp_path / "plan.yaml").chmod(0)
    assert "cannot be read" in refused("plan", tmp_path / "plan.yaml")


# ---- model files

MODELS = [
    ("m.yaml", "title: x\n", ["dims", "missing"]),
    ("m.yaml", MODEL + "}\n", ["dims.v_head_dim", "missing"]),
    ("m.yaml", WHOLE + "dimz: 1\n", ["dimz", "unknown key"]),
    ("m.yaml", WHOLE.replace("heads: 8", "heads: eight"), ["dims.heads", "'eight'"]),
    ("m.yaml", WHOLE.replace("heads: 8", "heads: 0"), ["dims.heads", "at least 1"]),
    ("m.yaml", WHOLE.replace("heads: 8", "heads: .nan"), ["line 1", ".nan"]),
    ("m.yaml", WHOLE.replace("heads: 8", "heads: 8, heads: 8"), ["'heads'", "twice"]),
    ("m.yaml", WHOLE.replace("heads: 8", "headz: 8"), ["dims"]),
    ("config.json", "{}", ["config.json"]),
    ("config.json", '{"model_type": "llama", "hidden_size": 64, "num_attention_heads": 4}', ["config.json"]),
    ("config.json", '{"kv_lora_rank": 64', ["cut off"]),
]


@pytest.mark.parametrize(("name", "content", "words"), MODELS, ids=[f"{n} {c[-40:]!r}" for n, c, _ in MODELS])
def test_a_bad_model_file(refused, tmp_path, name, content, words):
    (tmp_path / name).write_text(content, encoding="utf-8")
    for arguments in (["plan", "--model", tmp_path / name], ["explain", "laga", "--model", tmp_path / name]):
        message = refused(*arguments, faults=2 if "headz" in content else 1)  # heads is missing, headz unknown
        assert str(tmp_path / name) in message
        for word in words:
            assert word in message


def test_a_bad_device_file(refused, tmp_path):
    (tmp_path / "d.yaml").write_text("family: abacus\n")
    for arguments in (["plan", "--device", tmp_path / "d.yaml"], ["show", tmp_path / "d.yaml"]):
        message = refused(*arguments, faults=12)  # eleven keys are missing
        assert message.count("d.yaml") == 12
        assert "line 1, column 9: family: unknown value: 'abacus'" in message


# ---- Python

CALLS = [
    ({"model": 5}, "model"),
    ({"model": None}, "model"),
    ({"device": 5}, "device"),
    ({"device": [5]}, "device"),
    ({"form": 5}, "form"),
    ({"form": []}, "form"),
    ({"form": None}, "form"),
    ({"dims": 5}, "dims"),
    ({"dims": {"heads": "x"}}, "dims.heads"),
    ({"dims": {5: 5}}, "dims"),
    ({"sp": "8"}, "sp"),
    ({"sp": True}, "sp"),
    ({"seq_len": float("nan")}, "seq_len"),
    ({"seq_lenn": 5}, "seq_len"),
    ({"other_memory": float("nan")}, "other_memory"),
    ({"kernel": 5}, "kernel"),
    ({"scheme": 5}, "scheme"),
    ({"reserve": {"x": 1}}, "reserve"),
]


@pytest.mark.parametrize(("arguments", "field"), CALLS, ids=[str(arguments) for arguments, _ in CALLS])
def test_a_bad_call(arguments, field):
    with pytest.raises(mla_cost.InputError, match=re.escape(field)) as caught:
        mla_cost.plan(**arguments)
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("form", "quantity", "settings", "word"),
    [
        ("lga", "saved", {}, "laga"),
        ("laga", "sved", {}, "saved"),
        ("laga", "saved", {"kernel": "flsh"}, "flash"),
        ("laga", "saved", {"scheme": "ulises"}, "ulysses"),
        ("laga", "saved", {"dtype": "int8"}, "int8"),
        ("laga", "saved", {"v_layout": "copy"}, "copy"),
        ("laga", "saved", {"v_layuot": "view"}, "v_layuot: unknown key; did you mean v_layout"),
        ("laga", "saved", {"seq_len": 4096}, "seq_len"),
        ("laga", "saved", {"one": ["hed"]}, "heads"),
        ("absorbed", "saved", {"kernel": "flash"}, "shared key"),
    ],
)
def test_a_bad_formula(form, quantity, settings, word):
    with pytest.raises(mla_cost.InputError, match=word):
        mla_cost.formula(form, quantity, **settings)


def test_a_refusal_carries_its_parts(tmp_path):
    path = Path(tmp_path / "m.yaml")
    path.write_text(WHOLE.replace("heads: 8", "heads: 0"))
    with pytest.raises(mla_cost.InputError) as caught:
        mla_cost.plan(model=path, scope="attention")
    error = caught.value
    assert (error.file, error.field, error.value, error.allowed) == (str(path), "dims.heads", 0, "at least 1")
    assert str(error) == f"{path}: line 1, column 28: dims.heads: out of range, not 0; allowed: at least 1"
