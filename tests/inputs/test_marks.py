"""Faults with their places, and what is written to start from."""

from __future__ import annotations

import json

import pytest

import mla_cost
from mla_cost.cli import main
from mla_cost.inputs import catalog, plan_files
from mla_cost.inputs.annotated import annotated
from mla_cost.inputs.checked import faults
from mla_cost.inputs.settings import PlanSettings


@pytest.fixture
def cli(capsys):
    """The command line: what it prints, or says on stderr where it ends with 2."""

    def run(*arguments, code=0):
        with pytest.raises(SystemExit) as ended:
            main(tuple(map(str, arguments)))
        out, err = capsys.readouterr()
        assert (ended.value.code or 0) == code, err
        return err if code == 2 else out

    return run


PLAN = """\
model: deepseek-v3
seq_len: many
dims:
  heads: -3
  hiden: 4
tp: two
device: [h100-80gb, 3]
"""
CONFIG = '{"model_type": "deepseek_v3",\n\t"hidden_size": "a", "q_lora_rank": 3}\n'
NAMES = "model: deepseek-v33\ndevice:\n  - h100-80gb\nform: explicitt\nkernel: flush\n"
# line, column, field of every fault, counted by hand
PLACES = {
    "plan.yaml": (PLAN, {(2, 10, "seq_len"), (4, 10, "dims.heads"), (5, 3, "dims.hiden"), (6, 5, "tp"),
                         (7, 21, "device, entry 2")}),
    "config.json": (CONFIG, {(2, 17, "hidden_size")}),
    "names.yaml": (NAMES, {(1, 8, "model"), (4, 7, "form"), (5, 9, "kernel")}),
    "cut.yaml": ("model: [a\n", {(2, 1, None)}),
    "fine.yaml": ("model: deepseek-v3\ntp: 2\nscope: model\n", set()),
}  # fmt: skip


@pytest.mark.parametrize("name", PLACES)
def test_every_fault_has_its_place(tmp_path, name):
    text, places = PLACES[name]
    file = tmp_path / name
    file.write_text(text)
    found = faults(file)
    assert {(fault.line, fault.column, fault.field) for fault in found} == places
    assert all(fault.at_editor().startswith(f"{file}:{fault.line}:{fault.column}: ") for fault in found)


def test_the_nearest_name_is_told_with_the_place(tmp_path):
    (tmp_path / "names.yaml").write_text(NAMES)
    by_field = {fault.field: fault for fault in faults(tmp_path / "names.yaml")}
    assert by_field["model"].nearest[0] == "deepseek-v3"
    assert "did you mean flash?" in str(by_field["kernel"])


def test_python_says_how_many_more(tmp_path):
    file = tmp_path / "plan.yaml"
    file.write_text(PLAN)
    with pytest.raises(mla_cost.InputError, match=r"line 7, column 21: device, entry 2: .* \(and 4 more\)") as caught:
        mla_cost.plan_file(file)
    assert len(caught.value.further) == 4


def test_the_command_prints_them_in_order_and_ends_with_1(cli, tmp_path):
    file = tmp_path / "plan.yaml"
    file.write_text(PLAN)
    lines = cli("check", file, code=1).splitlines()
    assert [line.removeprefix(f"{file}:").split(": ")[0] for line in lines] == ["2:10", "4:10", "5:3", "6:5", "7:21"]
    answer = json.loads(cli("check", file, "--format", "json", code=1))
    second = answer["faults"][1]
    assert second == {
        "file": str(file), "line": 4, "column": 10, "field": "dims.heads", "found": "-3", "allowed": "at least 1",
        "message": "out of range", "nearest": [],
    }  # fmt: skip
    assert cli("check", file, "-q", code=1) == ""


def test_the_catalogue_has_no_faults():
    for kind in ("models", "devices", "plans"):
        for file in sorted((catalog.configs_directory() / kind).glob("*.yaml"))[::7]:
            assert faults(file) == (), file


def test_what_init_writes_is_the_default_plan(cli, tmp_path):
    file = tmp_path / "plan.yaml"
    cli("init", "--model", "kimi-k2", "--device", "a100-80gb", "-o", file)
    assert file.read_text() == annotated("kimi-k2", "a100-80gb")
    found = plan_files.settings(file, {}, {}, {})
    assert found.by_scope() == PlanSettings(model="kimi-k2", device=("a100-80gb",), scope="model").by_scope()
    assert "there is such a file already" in cli("init", "-o", file, code=2)
    commented = [line.removeprefix("# ") for line in file.read_text().splitlines()[2:] if line.startswith("# ")]
    examples = [line for line in commented if not line.startswith(("--", "stage", "published", "first", "last"))]
    for line in examples:  # every example is one that a plan takes
        file.write_text(f"model: kimi-k2\nscope: model\npp: 4\n{line}\n")
        assert faults(file) == (), line
