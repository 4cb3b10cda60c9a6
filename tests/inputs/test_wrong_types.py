"""Values of a wrong type in every public function: one InputError naming the argument, at once, in little memory."""

from __future__ import annotations

import itertools
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import mla_cost
from mla_cost.inputs.config import AttentionDims, ModelConfig
from mla_cost.inputs.settings import PlanSettings
from mla_cost.studies.search.options import CHOICES, DEGREES, Options

BASE: dict[str, Any] = {"model": "youtu-llm-2b", "device": "h100-80gb", "seq_len": 2048, "form": "explicit"}
SEARCH = {**BASE, "devices": 2, "global_batch": 4, "remat": "none", "sharding": "distributed", "kernel": "flash"}
STUDY = mla_cost.sweep(**BASE, scope="attention", over={"sp": [1, 2]})


class Odd:
    pass


class Loud:
    def __repr__(self) -> str:
        raise RuntimeError("no words")


class NoPath:
    def __fspath__(self) -> int:
        return 3


def deep() -> list[Any]:
    found: list[Any] = []
    for _ in range(50_000):
        found = [found]
    return found


WRONG: list[Any] = [
    *(None, True, -1, 3, 10**30, 10**5000, 1.5, float("nan"), float("inf"), 1j, "x", "", "\0", "x" * 100_000, b"x"),
    *([1, "a"], [[1]], (None,), {"a": 1}, {1: 2}, {"a": {"b": [1]}}, {1, 2}, [], {}, [{}], ..., "\ud800", deep()),
    *(range(10**9), range(10**30), Odd(), Odd, Loud(), NoPath(), Path("/nonexistent"), lambda *_: None),
    *(np.arange(3), np.float64(1.5), np.int64(8), np.array(3), itertools.count),
]


Call = Callable[[Any], Any]


def one_of(function: Callable[..., Any], base: dict[str, Any], name: str) -> Call:
    return lambda value: function(**{**base, name: value})


def key_of(function: Callable[..., Any], base: dict[str, Any], name: str, key: str, *, listed: bool = False) -> Call:
    return lambda value: function(**base, **{name: {key: [value] if listed else value}})


def calls() -> dict[str, Call]:
    """Every argument of every public function, by name."""
    found: dict[str, Call] = {
        "plan_file": mla_cost.plan_file,
        "levers(refused)": lambda value: mla_cost.levers(**BASE, refused=value),
        "sweep(over)": lambda value: mla_cost.sweep(**BASE, over=value),
        "best(by)": lambda value: STUDY.best(by=value),
        "best(per)": lambda value: STUDY.best(per=value),
        "best(where)": lambda value: STUDY.best(where=value),
        "best(where.sp)": lambda value: STUDY.best(where={"sp": value}),
        "best(where.status)": lambda value: STUDY.best(where={"status": value}),
        "best(where())": lambda value: STUDY.best(where=lambda _: value),
        "pareto(first)": lambda value: STUDY.pareto(value, "sp"),
        "pareto(where)": lambda value: STUDY.pareto("sp", "saved_bytes", where=value),
        "row": STUDY.row,
        "to_numpy(workers)": lambda value: STUDY.to_numpy(workers=value),
        "chunks": lambda value: list(STUDY.chunks(value)),
    }

    def add(function: Callable[..., Any], base: dict[str, Any], names: Any) -> None:
        for name in names:
            found[f"{function.__name__}({name})"] = one_of(function, base, name)

    add(mla_cost.plan, BASE, (*PlanSettings.model_fields, "nonsense"))
    add(mla_cost.longest, BASE | {"scope": "attention"}, ("max_seq_len", "zigzag", "model", "device", "form", "dims"))
    add(mla_cost.formula, {"form": "explicit"}, ("form", "quantity", "one", "without", "kernel", "scheme", "remat"))
    add(mla_cost.search, SEARCH, {*Options.model_fields, *DEGREES, *CHOICES, "model", "device", "form", "dims", "dp"})
    add(mla_cost.sweep, {**BASE, "over": {"sp": [1]}}, ("model", "device", "form", "scope", "seq_len"))
    for field, keys in (("dims", AttentionDims.model_fields), ("facts", ModelConfig.model_fields)):
        for key in keys:
            found[f"plan({field}.{key})"] = key_of(mla_cost.plan, BASE, field, key)
    for scope in ("model", "attention"):
        for key in ("sp", "seq_len", "form", "model", "device", "kernel", "dtype", "dims.heads", "reserve.x", "causal"):
            for listed in (False, True):
                name = f"sweep({scope}, over.{key}{'[]' * listed})"
                found[name] = key_of(mla_cost.sweep, {**BASE, "scope": scope}, "over", key, listed=listed)
    return found


CALLS = calls()


def reported(name: str, value: Any) -> None:
    """What is refused is refused by one line that is short."""
    try:
        CALLS[name](value)
    except mla_cost.InputError as error:
        message = str(error)
    else:
        message = ""
    assert "\n" not in message, name
    assert len(message) < 3000, name


@settings(max_examples=400, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.sampled_from(sorted(CALLS)), st.sampled_from(range(len(WRONG))))
def test_a_wrong_type_is_an_input_error(name: str, which: int) -> None:
    reported(name, WRONG[which])


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.sampled_from(sorted(CALLS)),
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
        max_leaves=8,
    ),
)
def test_any_value_is_an_input_error(name: str, value: Any) -> None:
    reported(name, value)


@pytest.mark.parametrize("key", ["\n", "\x1b[31m", "\ud800", "a\u2028b"])
def test_a_key_that_a_terminal_would_act_on_is_escaped(key: str) -> None:
    with pytest.raises(mla_cost.InputError) as error:
        mla_cost.plan(**BASE, dims={key: None})
    assert str(error.value).isprintable()


@pytest.mark.parametrize(
    "name",
    [
        *("plan(model)", "plan(device)", "plan(form)", "plan(dims)", "plan(reserve)", "plan(facts.aliases)"),
        *("longest(device)", "formula(one)", "formula(without)", "best(by)", "best(per)", "best(where.sp)"),
        *("sweep(device)", "sweep(attention, over.sp)", "sweep(model, over.device)", "search(devices)", "search(by)"),
        "search(tp)",
    ],
)
def test_a_list_without_end_is_not_walked(name: str) -> None:
    """A range of a billion took 3.7 GB; a generator never ends."""
    for endless in (range(10**9), itertools.count()):
        tracemalloc.start()
        start = time.process_time()
        reported(name, endless)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert time.process_time() - start < 15, name
        assert peak < 2**28, name


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("plan(device)", range(10**9), ["device: too many values", "allowed: at most 10,000", "name of the catalogue"]),
        ("plan(device)", 3, ["device: must be a list, not 3", "a name of the catalogue, the path of a file"]),
        ("plan(model)", [], ["model: must be text, not a list"]),
        ("plan(form)", [None], ["form: must be text, not null", "explicit, absorbed, laga, a list of them, or all"]),
        ("plan_file", 3, ["plan: must be text, not 3; allowed: a ready plan's name, or the path of a file"]),
        ("sweep(attention, over.sp)", {"a": 1}, ["over sp: is no single value: a mapping; allowed: numbers"]),
        ("best(by)", 3, ["by: must be a list, not 3; allowed: "]),
        ("best(where)", 3, ["where: selects nothing: 3; allowed: a mapping of columns to values, or a function"]),
        ("best(where.sp)", [[1]], ["where sp: is no value of a column: a list; allowed: a number, a name"]),
        (
            "best(where())",
            3,
            ["where: the function gave no mask, not 3; allowed: an array of 2 that are true or false"],
        ),
        ("formula(one)", 3, ["one: must be a list, not 3; allowed: a list of names"]),
        ("formula(form)", ["explicit"], ["form: must be a name, not a list; allowed: explicit, absorbed, laga"]),
        ("formula(remat)", "x", ["unknown remat 'x'"]),
        ("search(by)", 3, ["by: must be a list, not 3; allowed: "]),
        ("longest(zigzag)", 3, ["zigzag: must be true or false, not 3"]),
        ("row", 2, ["index: no such point: 2; allowed: 0 to 1"]),
    ],
)
def test_the_message_names_argument_value_and_what_is_allowed(name: str, value: Any, words: list[str]) -> None:
    with pytest.raises(mla_cost.InputError) as caught:
        CALLS[name](value)
    assert [word for word in words if word not in str(caught.value)] == [], str(caught.value)


def test_a_sweep_is_still_walked_to_its_end() -> None:
    assert [row["sp"] for row in STUDY] == [1, 2]  # type: ignore[attr-defined]
