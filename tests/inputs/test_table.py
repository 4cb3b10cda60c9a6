"""The table of settings: one row per field, and all that is made from it says the same."""

from __future__ import annotations

import shlex
from typing import Any, Literal, get_args, get_origin

import pytest

from mla_cost.cli.flags import options_of
from mla_cost.cli.options import OWN, default_of, offered
from mla_cost.declared.optimizers import OPTIMIZERS
from mla_cost.declared.shardings import SHARDINGS
from mla_cost.errors import InputError
from mla_cost.inputs import plan_files
from mla_cost.inputs.command import command_of
from mla_cost.inputs.config import validated
from mla_cost.inputs.counts import counted
from mla_cost.inputs.settings import PlanSettings
from mla_cost.inputs.table import TABLE, Setting
from mla_cost.language.dims import SYMBOLS
from mla_cost.results.columns import plan_columns

FLAGGED = [row for row in TABLE.values() if row.flag]
SAID: dict[str, Any] = {"seq_len": 131072, "device": ("h100-80gb",), "form": ("laga",), "other_memory": 2 * 2**30}
SAID |= {
    "host_memory": 2**40,
    "tokens": 14_800_000_000_000,
    "reserve": {"runtime context": 2**30},
    "pipeline_layout": "Et|(tt|)*3tL",
}


def value_of(row: Setting) -> Any:
    """The value that a row's example stands for, worked out here and not by the reader of flags."""
    return SAID.get(row.name, int(row.example) if row.example.isdigit() else row.example)


def read(*words: str) -> PlanSettings:
    """The settings of a command line of `plan`, by its flags alone."""
    names = {flag: option for option in options_of("plan") for flag in (option.flags or (f"--{option.name}",))}
    values: dict[str, Any] = {}
    for flag, value in zip(words[::2], words[1::2], strict=True):
        option = names[flag]
        number = int(value) if option.kind == "count" and value.lstrip("-").isdigit() else value
        values[option.name] = [value] if option.kind == "names" else number
    reserved = plan_files.assignments(values.pop("reserve", None), "reserve")
    assigned = plan_files.assignments(values.pop("assign", None))
    flags = {name: plan_files.read_flag(name, value) for name, value in values.items()}
    return plan_files.settings(None, flags, assigned, reserved)


def test_every_field_has_a_row_and_every_row_a_field():
    assert TABLE.keys() == PlanSettings.model_fields.keys()
    assert [name for name, row in TABLE.items() if PlanSettings.model_fields[name].default != row.default] == []


@pytest.mark.parametrize("name", TABLE)
def test_a_field_takes_what_its_row_allows(name: str):
    row, annotation = TABLE[name], PlanSettings.model_fields[name].annotation
    parts = [annotation, *get_args(annotation)]
    declared = {"sharding": tuple(SHARDINGS), "optimizer": tuple(OPTIMIZERS)}.get(name, ())  # of files, and no type
    words = next((get_args(part) for part in parts if get_origin(part) is Literal), declared)
    assert words == row.values
    assert (type(None) in parts) is row.none
    for bound, beyond in ((row.least, -1), (row.most, 1)):
        if row.kind in {"count", "tokens"} and bound is not None:
            assert getattr(validated(PlanSettings, {name: bound}), name) == bound
            with pytest.raises(InputError, match=f"^{name}: out of range"):
                validated(PlanSettings, {name: bound + beyond})


@pytest.mark.parametrize("row", FLAGGED, ids=lambda row: row.name)
def test_the_command_of_a_setting_makes_it_again(row: Setting):
    value = value_of(row) if row.kind != "switch" else False
    asked = validated(PlanSettings, {row.name: value})
    assert getattr(asked, row.name) == value
    words = shlex.split(command_of(asked))[2:]
    if row.kind == "switch":
        assert words[-1] == f"--no-{row.name}"
    else:
        again = getattr(read(*words), row.name)
        assert again == value
        assert row.flags[0] in words or value == row.default


@pytest.mark.parametrize("row", FLAGGED, ids=lambda row: row.name)
def test_a_row_says_what_it_is_with_an_example_and_a_default(row: Setting):
    assert row.help
    assert row.help.removesuffix("...")[-1] not in ".;"
    assert row.example or row.kind == "switch"
    assert default_of(row) or row.kind == "entries"
    assert row.unit or row.kind not in {"count", "tokens", "bytes"} or row.name == "stage"


@pytest.mark.parametrize("command", OWN)
def test_flags_of_a_command_have_names_of_their_own(command: str):
    names = [flag for option in options_of(command) for flag in (option.flags or (f"--{option.name}",))]
    assert len(names) == len(set(names))
    every = {row.name for row in FLAGGED}
    has = {row.name for row in offered(command)}
    without = {
        "search": {"scope", "layers", "idle_mlp", "stage", "dp", "micro_batches", "pipeline_layout"}
        | {"first_layers", "last_layers"},
        **dict.fromkeys(("import", "diff"), every),
    }
    if command != "explain":
        assert has == every - without.get(command, set())


def test_headings_and_symbols_name_settings():
    assert {field for _, field in SYMBOLS.values() if "." not in field and field in TABLE} >= {"sp", "micro_batch"}
    assert set(plan_columns("model")) & TABLE.keys() >= {"tp", "remat", "sharding"}


COUNTS = [
    ("8k", 8192),
    ("128k", 131_072),
    ("1M", 1_048_576),
    ("16_384", 16_384),
    ("1e4", 10_000),
    ("1.5k", 1536),
    ("4096", 4096),
]


@pytest.mark.parametrize(("text", "count"), COUNTS)
def test_counts_of_tokens_read_alike_by_flag_set_yaml_and_python(tmp_path, text: str, count: int):
    assert counted(text) == count
    file = tmp_path / "plan.yaml"
    file.write_text(f"seq_len: {text}\n", encoding="utf-8")
    by_set = plan_files.settings(None, {}, plan_files.assignments([f"seq_len={text}"]), {})
    by_file = plan_files.settings(file, {}, {}, {})
    by_python = validated(PlanSettings, {"seq_len": text})
    by_flag = read("--seq-len", text)
    assert [each.seq_len for each in (by_set, by_file, by_python, by_flag)] == [count] * 4


@pytest.mark.parametrize("text", ["1.3k", "x", "", "8 k", "0x10", "1e400", "k", "1.5", "--"])
def test_what_is_no_count_is_refused_in_one_line(text: str):
    assert counted(text) is None
    with pytest.raises(InputError, match=r"^seq_len: must be a whole number such as"):
        validated(PlanSettings, {"seq_len": text})


def test_an_axis_takes_counts_of_tokens():
    from mla_cost.studies.sweep.axes import values_of

    assert values_of("seq_len", "4k..16k*2") == [4096, 8192, 16384]
    assert values_of("seq_len", "8k,1e4") == [8192, 10_000]
    assert list(values_of("seq_len", "4k..6k+1k")) == [4096, 5120, 6144]
    assert values_of("seq_len", ["8k", 5]) == [8192, 5]


def test_a_setting_has_its_other_names_everywhere(tmp_path):
    from mla_cost.studies.sweep.axes import axes_of

    for row in TABLE.values():
        for name in row.also:
            asked = int(row.example)
            file = tmp_path / "plan.yaml"
            file.write_text(f"scope: model\n{name}: {asked}\n", encoding="utf-8")
            assert f"--{name.replace('_', '-')}" in row.flags
            by_set = plan_files.settings(None, {}, plan_files.assignments([f"{name}={asked}"]), {})
            by_file = plan_files.settings(file, {}, {}, {})
            by_python = validated(PlanSettings, {"scope": "model", name: asked})
            assert [getattr(each, row.name) for each in (by_set, by_file, by_python)] == [asked] * 3
            assert [axis.name for axis in axes_of(by_file, {name: [asked]})] == [row.name]
            with pytest.raises(InputError, match=f"stated twice: {row.name} is the same setting"):
                validated(PlanSettings, {row.name: asked, name: asked})
    assert {name for row in TABLE.values() for name in row.also} == {"micro_batch_size", "num_micro_batches"}
