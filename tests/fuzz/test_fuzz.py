"""Mutated input of every kind: a price or one message, never a traceback, and never another model without a word.

A few cases of each by default; `MLA_COST_FUZZ=2500 python -m pytest tests/fuzz` draws that many of each of the four.
"""

from __future__ import annotations

import copy
import json
import os
from functools import cache
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mla_cost.cli import main
from mla_cost.cli.flags import names_of, options_of
from mla_cost.errors import InputError
from mla_cost.inputs import importers
from mla_cost.inputs.checked import faults
from mla_cost.inputs.config import ModelConfig
from mla_cost.inputs.importers.huggingface import model_from_config
from mla_cost.inputs.settings import PlanSettings

PIECES = ["", "'", '"', "$(", "\\", "}", "\x00", "--tp", "\n\t", "${A", "[[["]
KEYS = [*PlanSettings.model_fields, "tpp", "hidden"]
FIXTURES = Path(__file__).parents[1] / "fixtures"
CONFIGS = sorted((FIXTURES / "hf").glob("*.json"))
LAUNCHES = sorted(path for path in (FIXTURES / "launch").rglob("*") if path.is_file())
ASKED = int(os.environ.get("MLA_COST_FUZZ", "0"))
ODD: list[Any] = [
    None, True, False, 0, -1, 1, 2, 7, 2**31, 2**63, 10**30, 1.5, -0.0, 1e308, "", " ", "8", "8k", "nan", "=1+1",
    "\x1b[31m", "x" * 300, "\u202e", [], [1], ["a", None], [[[]]], {}, {"a": 1}, {"heads": 3},
]  # fmt: skip


def cases(few: int) -> Any:
    """How many to draw: the same ones every time unless more are asked for; a slow machine is no failure."""
    return settings(
        max_examples=ASKED or few,
        deadline=None,
        derandomize=not ASKED,
        database=None,
        suppress_health_check=list(HealthCheck),
    )


def require_one_line(error: InputError) -> None:
    """The message of a refusal, to be printed on a terminal."""
    assert str(error).isprintable()


@cache
def original(place: int) -> tuple[dict[str, Any], ModelConfig | None]:
    data = json.loads(CONFIGS[place].read_text())
    try:
        return data, model_from_config(data, file="config.json")
    except InputError:
        return data, None


@cases(150)
@given(st.integers(0, len(CONFIGS) - 1), st.data())
def test_a_config_with_a_field_dropped_renamed_or_retyped(place, draw):
    known, model = original(place)
    data = copy.deepcopy(known)
    key = draw.draw(st.sampled_from(sorted(data)))
    how = draw.draw(st.sampled_from(["drop", "rename", "retype"]))
    value = data.pop(key)
    if how == "rename":
        data[f"{key}_x"] = value
    elif how == "retype":
        data[key] = draw.draw(st.sampled_from(ODD))
    try:
        found = model_from_config(data, file="config.json")
    except InputError as error:
        require_one_line(error)
        return
    if how != "retype" and model is not None and found.dims != model.dims:
        assert found.assumed.keys() - model.assumed.keys(), (key, how)


@cases(150)
@given(st.dictionaries(st.sampled_from(KEYS), st.sampled_from(ODD), max_size=5))
def test_a_plan_file_of_any_values(tmp_path_factory, values):
    file = tmp_path_factory.getbasetemp() / "plan.json"
    file.write_text(json.dumps(values))
    for fault in faults(file):
        assert "\n" not in str(fault)
        assert str(fault).isprintable()
        assert fault.file


@cases(60)
@given(
    st.integers(0, len(LAUNCHES) - 1),
    st.integers(0, 10**6),
    st.integers(0, 40),
    st.sampled_from(PIECES),
)
def test_a_launch_file_with_a_piece_replaced(tmp_path_factory, place, at, length, piece):
    source = LAUNCHES[place]
    text = source.read_text()
    at %= len(text) + 1
    file = tmp_path_factory.getbasetemp() / source.name
    file.write_text(text[:at] + piece + text[at + length :])
    try:
        importers.read(file)
    except InputError as error:
        require_one_line(error)


FLAGS = {
    name: [flag for option in options_of(name) for flag in names_of(option) if option.kind != "plan"]
    for name in ("plan", "export", "explain")
}
VALUES = [
    *(str(value) for value in ODD if isinstance(value, str | int | float)),
    "laga",
    "h100-80gb",
    "tp=2",
    "none",
    "1..4*2",
]


@cases(25)
@given(st.sampled_from(sorted(FLAGS)), st.data())
def test_a_command_line_of_any_words(capsys, command, draw):
    words = draw.draw(st.lists(st.tuples(st.sampled_from(FLAGS[command]), st.sampled_from(VALUES)), max_size=3))
    line = [command, *(["laga"] if command == "explain" else []), *(word for pair in words for word in pair)]
    code: Any = None
    try:
        main(line)
    except SystemExit as ended:
        code = ended.code
    assert code in {0, 1, 2, None}, line
    out, err = capsys.readouterr()
    assert "Traceback" not in err
    assert "\x1b" not in out + err, line
