"""Two plans side by side: settings that differ, every total, and what accounts for the difference, to the byte."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from mla_cost import api
from mla_cost.errors import InputError, shown
from mla_cost.inputs import plan_files
from mla_cost.inputs.settings import PlanSettings
from mla_cost.inputs.table import TABLE
from mla_cost.results import SCHEMA as PLAN_SCHEMA
from mla_cost.results import Plan, plain

SCHEMA: Final = "mla-cost/diff/1"
_FOREIGN: Final = (".sh", ".bash", ".slurm", ".sbatch", ".toml", ".txt", ".args")
_FIGURES: Final = (
    *("memory.allocated_peak_bytes", "memory.peak_bytes", "memory.saved_bytes", "memory.parameter_bytes"),
    *("memory.parameter_gradient_bytes", "memory.optimizer_bytes", "memory.kernel_workspace_bytes"),
    *("communication.forward.payload_bytes", "communication.forward.wire_bytes"),
    *("communication.backward.payload_bytes", "communication.backward.wire_bytes"),
    *("flops.forward.model", "flops.forward.executed", "flops.backward.model", "flops.backward.executed"),
    *("verdict.required_bytes", "verdict.usable_bytes", "verdict.headroom_bytes", "verdict.status"),
)
# of layers and of ranks: "kept, 26 moe" is the place "kept, moe", and "forward, ep 32" is "forward, ep"
_COUNT: Final = re.compile(r"\b\d+ (?=\w)| \d+$")
_REST: Final = ("", "not itemised in the file")


class DiffSide(NamedTuple):
    """One of two answers. settings: resolved; result: as the JSON has it; parts: bytes by term and (where, name)."""

    name: str
    settings: Mapping[str, Any]
    result: Mapping[str, Any]
    parts: Mapping[str, Mapping[tuple[str, str], int]]


class Changed(NamedTuple):
    """A figure or a setting of both sides."""

    name: str
    first: Any
    second: Any


class DiffPart(NamedTuple):
    """What a tensor, a state or a collective has in both. Bytes."""

    where: str
    name: str
    first: int
    second: int

    @property
    def delta(self) -> int:
        """What the second has more."""
        return self.second - self.first


class Diff(NamedTuple):
    """Two answers side by side. memory, sent: parts that differ; their deltas add up to that of the totals."""

    first: str
    second: str
    form: str
    settings: tuple[Changed, ...]
    totals: tuple[Changed, ...]
    memory: tuple[DiffPart, ...]
    sent: tuple[DiffPart, ...]

    def to_dict(self) -> dict[str, Any]:
        """The JSON object."""
        lists = {name: [each._asdict() for each in getattr(self, name)] for name in ("settings", "totals")}
        parts = {name: [{**e._asdict(), "delta": e.delta} for e in getattr(self, name)] for name in ("memory", "sent")}
        return {"schema": SCHEMA, "first": self.first, "second": self.second, "form": self.form, **lists, **parts}


def diff(first: str, second: str, form: str | None = None, device: str | None = None) -> Diff:
    """Two plans, ready plans, configs, launch scripts or results of `plan --format json`.

    form, device: of both; without them the first form that both have, on the device that each names first.

    Raises:
        InputError: what is none of them, or has no figures.

    """
    one, other = (_side(name, form, device) for name in (first, second))
    if form is None and one.result["form"] != other.result["form"]:
        other = _side(second, one.result["form"], device)
    return Diff(
        first, second, one.result["form"], tuple(_settings(one, other)), tuple(_totals(one, other)),
        _parts(one, other, "allocated"), _parts(one, other, "sent"),
    )  # fmt: skip


def _side(name: str, form: str | None, device: str | None) -> DiffSide:
    path = Path(name)
    if path.suffix.lower() == ".json":
        from mla_cost.inputs.yaml_files import load_mapping

        data = load_mapping(name)
        if data.get("schema") == PLAN_SCHEMA:
            return _recorded(name, data, form)
    settings = _settings_of(name)
    update = {key: (value,) for key, value in (("form", form), ("device", device)) if value is not None}
    settings = settings.model_copy(update=update)
    one = settings.model_copy(update={"form": settings.form[:1], "device": settings.device[:1]})
    return _priced(name, one)


def _settings_of(name: str) -> PlanSettings:
    """The settings of a plan, a launch script, or of a model alone."""
    from mla_cost.inputs import importers

    path = Path(name)
    if path.suffix.lower() in _FOREIGN or (path.is_dir() and (path / "config.json").is_file()):
        return plan_files.settings(None, {}, {}, {}, importers.read(name).settings, name)
    try:
        return plan_files.settings(path, {}, {}, {})
    except InputError as error:
        if path.suffix.lower() not in {".json", ".yaml", ".yml"} or not path.is_file():
            raise
        try:
            return plan_files.settings(None, {}, {}, {}, importers.read(name).settings, name)
        except InputError:
            raise error from None


def _priced(name: str, settings: PlanSettings) -> DiffSide:
    answer: Plan = api.answer(settings)
    result = plain(answer.results[0])
    if result["memory"]["allocated_peak_bytes"] is None:
        reason = (result["verdict"] or {}).get("reason", "no figures")
        raise InputError(f"{shown(name)} has no figures: {reason}")
    parts = {term: _items(settings, term) for term in ("allocated", "sent")}
    return DiffSide(name, answer.to_dict()["inputs"], result, parts)


def _items(settings: PlanSettings, term: str) -> dict[tuple[str, str], int]:
    found: Counter[tuple[str, str]] = Counter()
    for each in api.terms(settings, term)[0].items:
        found[_COUNT.sub("", each.where), each.name] += each.bytes
    return dict(found)


def _recorded(name: str, data: Mapping[str, Any], form: str | None) -> DiffSide:
    """A result as it was recorded: its breakdown and its collectives, nothing priced anew."""
    rows = [row for row in data.get("results", ()) if isinstance(row, dict) and form in {None, row.get("form")}]
    if not rows or not isinstance(data.get("inputs"), dict):
        raise InputError("no result of that form in this file", file=name, field="form", value=form)
    row = rows[0]
    try:
        memory, calls = row["memory"], row["communication"]["collectives"]
        held = Counter({("", each["name"]): int(each["bytes"]) for each in memory["breakdown"]})
        held[_REST] += int(memory["allocated_peak_bytes"]) - held.total()
        sent: Counter[tuple[str, str]] = Counter()
        for each in calls:
            sent[f"{each['phase']}, over {each['axis']}", f"{each['kind']} of {each['tensor']}"] += int(
                each["wire_bytes"]
            )
    except (KeyError, TypeError, ValueError):
        raise InputError("not what `mla-cost plan --format json` prints", file=name) from None
    return DiffSide(name, data["inputs"], row, {"allocated": {k: v for k, v in held.items() if v}, "sent": dict(sent)})


def _settings(one: DiffSide, other: DiffSide) -> Iterator[Changed]:
    """The settings that differ, dims by themselves; forms and devices as each result has them."""
    for name in TABLE:
        values: list[Any] = [side.settings.get(name) for side in (one, other)]
        if name == "dims" and all(isinstance(value, dict) for value in values):
            for key in values[0]:
                if values[0][key] != values[1].get(key):
                    yield Changed(f"dims.{key}", values[0][key], values[1].get(key))
        elif name in {"form", "device", "scheme", "kernel"}:
            found = [side.result.get(name) for side in (one, other)]
            if found[0] != found[1]:
                yield Changed(name, *found)
        elif values[0] != values[1]:
            yield Changed(name, *values)


def _totals(one: DiffSide, other: DiffSide) -> Iterator[Changed]:
    for name in _FIGURES:
        values = [_at(side.result, name) for side in (one, other)]
        if values != [None, None]:
            yield Changed(name, *values)
    for term in ("sent",):
        yield Changed(f"{term}_bytes", *(sum(side.parts[term].values()) for side in (one, other)))


def _at(result: Any, path: str) -> Any:
    for key in path.split("."):
        result = result.get(key) if isinstance(result, Mapping) else None
    return result


def _parts(one: DiffSide, other: DiffSide, term: str) -> tuple[DiffPart, ...]:
    """The parts that differ, the largest difference first."""
    keys = dict.fromkeys((*one.parts[term], *other.parts[term]))
    every = (DiffPart(*key, one.parts[term].get(key, 0), other.parts[term].get(key, 0)) for key in keys)
    return tuple(sorted((part for part in every if part.delta), key=lambda part: -abs(part.delta)))


def to_json(found: Diff) -> str:
    """The JSON text."""
    return json.dumps(found.to_dict(), indent=2)
