"""Pieces that the tables of all scopes are made of."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, Final

from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from mla_cost.results import Basis, Plan, Result
from mla_cost.views.units import gib, readable

# whom a reason is about, which the heading says: stages, and blocks that do not fit
_SUBJECT = re.compile(r"\b(?:(?:the worst stage|stage \d+) (?=fits|\d)|(?:one block|\d+ blocks) (?=\d))")
STYLES = {"fits": "green", "tight": "yellow", "oom": "red", "unsupported": "magenta", "illegal": "magenta"}


LONGEST = 60  # characters of a value


def also_set(changed: Mapping[str, Any], reported: Collection[str]) -> str:
    """A line of settings that are not the default's and that nothing else in the heading tells; empty where none."""
    rest = [f"{name} {_value(name, value)}" for name, value in changed.items() if name not in reported]
    return f"\nalso set: {', '.join(rest)}" if rest else ""


def _value(name: str, value: Any) -> str:
    if name.startswith("reserve."):
        return readable(value)
    text = "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}..."


def by_device(plan: Plan) -> Iterator[tuple[str | None, list[Result]]]:
    """The results of each device, in order."""
    for device in dict.fromkeys(result.device for result in plan.results):
        yield device, [result for result in plan.results if result.device == device]


def device_line(plan: Plan, device: str | None, results: list[Result]) -> str:
    """What a device is, and what of its memory is usable."""
    if device is None:
        return "no device"
    verdict = next((r.verdict for r in results if r.verdict and r.verdict.usable_bytes is not None), None)
    title = plan.inputs["devices"][device]["title"]
    if verdict is None:
        return f"{device} ({title})"
    visible = next(item.bytes for item in verdict.basis if item.name == "visible memory")
    return f"{device} ({title}): usable {gib(verdict.usable_bytes)} of {gib(visible)} GiB visible"


def reserve_line(results: list[Result]) -> str:
    """What stands between usable and visible memory, all of it budgeted; empty without a verdict."""
    verdict = next((r.verdict for r in results if r.verdict and r.verdict.usable_bytes is not None), None)
    parts = [item for item in verdict.basis if item.name.startswith("reserve: ")] if verdict else []
    reported = [f"{item.name.removeprefix('reserve: ')} {_reserved(item)}" for item in parts if item.bytes]
    return f"reserved, budgeted: {', '.join(reported)}" if reported else ""


def _reserved(item: Basis) -> str:
    """An amount and, of a range, its high end."""
    return gib(-item.bytes) + ("" if item.high_bytes is None else f" (up to {gib(-item.high_bytes)})")


def note_lines(plan: Plan) -> list[str]:
    """Every note once, with the forms that it is about; a note about all of them stands alone."""
    notes: dict[str, list[str]] = {}
    for result in plan.results:
        for note in result.notes:
            names = notes.setdefault(note, [])
            if result.form not in names:
                names.append(result.form)
    every = len({result.form for result in plan.results})
    return [note if len(forms) == every > 1 else f"{', '.join(forms)}: {note}" for note, forms in notes.items()]


def other_memory(plan: Plan) -> str:
    """What the plan adds to every figure that is compared with a device; empty where it adds nothing."""
    amount = plan.inputs["other_memory"]
    return f", other memory {readable(amount)}" if amount else ""


def refused(result: Result) -> bool:
    """Whether there is a reason to tell in place of figures."""
    return result.verdict is not None and result.verdict.status in {"illegal", "unsupported"}


def verdict_text(result: Result) -> Text:
    """The verdict in a few words, without the stage or blocks that the heading names."""
    verdict = result.verdict
    if verdict is None:
        return Text("-")
    said = _SUBJECT.sub("", verdict.reason, count=1)
    if verdict.status == "fits":
        return Text(said, STYLES["fits"])
    reason = "see below" if refused(result) else said.replace("fits, only ", "") if result.scope == "model" else said
    return Text.assemble((verdict.status, STYLES[verdict.status]), f": {reason}")


def items(rows: Iterable[tuple[str, str]]) -> RenderableType:
    """A list: each name, then its text in a column of its own."""
    table = Table.grid(padding=(0, 1, 0, 0))
    table.add_column(max_width=34)
    table.add_column(min_width=24)
    for name, text in rows:
        table.add_row(name, text)
    return Padding(table, (0, 0, 0, 2), expand=False)


# of the column that has it
AT_WORST: Final = "worst: left where libraries take the most that they may; below 0 it may not fit"


def assumed(inputs: Mapping[str, Any]) -> Iterator[str]:
    """A line for each fact that the model's file does not state."""
    for words in inputs.get("assumed", {}).values():
        yield f"assumed: {words}"
