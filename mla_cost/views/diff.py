"""Two plans side by side, as text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from mla_cost.views.units import readable

_SHOWN: Final = 12
_LABELS: Final = {
    "memory.allocated_peak_bytes": "allocated peak", "memory.peak_bytes": "peak", "memory.saved_bytes": "saved",
    "memory.parameter_bytes": "weights", "memory.parameter_gradient_bytes": "gradients",
    "memory.optimizer_bytes": "optimizer", "memory.kernel_workspace_bytes": "kernel workspace",
    "communication.forward.payload_bytes": "payload, forward", "communication.forward.wire_bytes": "wire, forward",
    "communication.backward.payload_bytes": "payload, backward", "communication.backward.wire_bytes": "wire, backward",
    "flops.forward.model": "model flops, forward", "flops.forward.executed": "executed flops, forward",
    "flops.backward.model": "model flops, backward", "flops.backward.executed": "executed flops, backward",
    "verdict.required_bytes": "required", "verdict.usable_bytes": "usable", "verdict.headroom_bytes": "headroom",
    "verdict.status": "verdict", "sent_bytes": "sent",
}  # fmt: skip


def text(found: Mapping[str, Any]) -> str:
    """The lines of a diff: its JSON object in, text out."""
    return "\n".join([*_lines(found), ""])


def _lines(found: Mapping[str, Any]) -> Iterator[str]:
    yield f"A {found['first']}"
    yield f"B {found['second']}"
    yield f"form {found['form']}"
    yield ""
    if not found["settings"]:
        yield "No setting differs."
    yield from _table(
        "setting", [(each["name"], _value(each["first"]), _value(each["second"])) for each in found["settings"]]
    )
    yield ""
    totals = [each for each in found["totals"] if each["first"] is not None or each["second"] is not None]
    same = [_LABELS[each["name"]] for each in totals if each["first"] == each["second"]]
    rows = [(_LABELS[each["name"]], *_figures(each)) for each in totals if each["first"] != each["second"]]
    yield from _table("total", rows, ("A", "B", "B - A"))
    if same:
        yield f"the same in both: {', '.join(same)}"
    yield from _parts("Allocated peak: what accounts for the difference", found["memory"])
    yield from _parts("Sent: what accounts for the difference", found["sent"])


def _parts(title: str, parts: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    if not parts:
        return
    yield ""
    shown, rest = parts[:_SHOWN], parts[_SHOWN:]
    rows = [(_place(each), *_figures(each)) for each in shown]
    if rest:
        less = {name: sum(each[name] for each in rest) for name in ("first", "second")}
        rows.append((f"{len(rest)} smaller ones", *_figures(less)))
    every = {name: sum(each[name] for each in parts) for name in ("first", "second")}
    rows.append(("together", *_figures(every)))
    yield from _table(title, rows, ("A", "B", "B - A"))


def _place(each: Mapping[str, Any]) -> str:
    return f"{each['where']}: {each['name']}" if each["where"] else str(each["name"])


def _figures(each: Mapping[str, Any]) -> tuple[str, ...]:
    first, second = each["first"], each["second"]
    if isinstance(first, str) or isinstance(second, str):
        return (_value(first), _value(second), "")
    known = first is not None and second is not None
    flops = "flops" in str(each.get("name", ""))
    delta = (f"{second - first:+,}" if flops else readable(second - first, sign=True)) if known else ""
    told = tuple("-" if one is None else f"{one:,}" if flops else readable(one) for one in (first, second))
    return (*told, delta)


def _value(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return "none" if value is None else str(value).lower()
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value)) or "none"
    return str(value)


def _table(title: str, rows: Sequence[Sequence[str]], heads: Sequence[str] = ("A", "B")) -> Iterator[str]:
    """Columns of their own widths, the first one to the left."""
    if not rows:
        return
    every = [(title, *heads), *rows]
    widths = [max(len(row[at]) for row in every) for at in range(len(every[0]))]
    for row in every:
        cells = [
            f"{row[0]:<{widths[0]}}",
            *(f"{cell:>{width}}" for cell, width in zip(row[1:], widths[1:], strict=True)),
        ]
        yield "  ".join(cells).rstrip()
