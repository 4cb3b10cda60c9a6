"""What fits as a table over devices and forms. Reads the JSON object."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from mla_cost.views import terminal
from mla_cost.views.grid import TextGrid
from mla_cost.views.parts import assumed
from mla_cost.views.times import duration

LIMITS = {
    "memory": "",
    "max_seq_len": "or longer: --max-seq-len ends the search",
    "kernel": "unsupported: see below",
    "illegal": "illegal: see below",
}
WIDER = ("tp", "micro_batch", "scheme", "sharding", "remat")  # what a search goes over and fit holds
ATTENTION = (
    "Not in this scope: everything but the attention block; --scope model prices the whole model. Kernels named eager "
    "hold S x S tensors; --kernel auto asks for the fused kernel that trains each form on each device."
)


def fit_table(found: Mapping[str, Any], *, notes: bool = True) -> RenderableType:
    """The whole answer. notes: with what its words mean and stand on; why a row has no answer is always told."""
    parts: list[RenderableType] = [Text(line) for line in _heading(found["inputs"])]
    parts += map(Text, assumed(found["inputs"]))
    parts += [Text(_columns(found["inputs"]), style="dim")] if notes else []
    for name, device in found["inputs"]["devices"].items():
        rows = [row for row in found["results"] if row["device"] == name]
        parts += [Text(""), Text(_device_line(name, device["title"], rows), style="bold"), _rows(rows)]
        parts += list(_fewest(rows)) if found["inputs"]["scope"] == "model" else []
    parts += list(_notes(found["results"], notes=notes))
    if notes and found["inputs"]["scope"] == "attention":
        parts += [Text(""), Text(ATTENTION, style="dim")]
    return Group(*parts)


def fit_text(found: Mapping[str, Any], width: int = 80) -> str:
    """The answer as plain text without colour codes."""
    return terminal.text(fit_table(found), width)


def show(found: Mapping[str, Any], *, notes: bool = True) -> None:
    """Print the answer to a terminal or a pipe; 80 columns suffice."""
    terminal.show(fit_table(found, notes=notes))


def _heading(inputs: Mapping[str, Any]) -> Iterator[str]:
    axes = ("tp", "sp", "pp", "ep", "dp") if inputs["scope"] == "model" else ("sp",)
    degrees = ", ".join(f"{axis} {inputs[axis]}" for axis in axes)
    about = f"micro-batch {inputs['micro_batch']}, {inputs['dtype']}"
    if inputs["scope"] == "model":
        what = "the whole model"
        about = f"micro-batch {inputs['micro_batch']} x {inputs['micro_batches']}, {inputs['dtype']}"
    else:
        what = "one attention block" if inputs["layers"] == 1 else f"{inputs['layers']} attention blocks"
    yield f"{inputs['model_title']}, {what}: what fits at {degrees}; {about}"


def _columns(inputs: Mapping[str, Any]) -> str:
    target = f"{inputs['seq_len']:,}"
    fewest = (
        f"with sp, pp, ep and dp chosen for it, tp as asked, and a stage that waits at most {inputs['max_idle']} % "
        "of its schedule (--max-idle), as in search"
        if inputs["scope"] == "model"
        else "that share a block"
    )
    return (
        f"longest: tokens in a sequence, all ranks together. least sp: for {target} tokens, all else as asked. fewest: "
        f"devices for {target} tokens, {fewest}. tight: under 5 % of the usable memory left."
    )


def _device_line(name: str, title: str, rows: list[Mapping[str, Any]]) -> str:
    usable = next((row["usable_bytes"] for row in rows if row["usable_bytes"] is not None), None)
    return f"{name} ({title})" + ("" if usable is None else f": usable {usable / 2**30:,.2f} GiB")


def _rows(rows: list[Mapping[str, Any]]) -> TextGrid:
    table = TextGrid(("form", "kernel", "longest", "least sp", "fewest", ""), left=("form", "kernel", ""))
    for row in rows:
        least = _count(row["min_sp"], row["min_sp_status"]), _count(row["min_devices"], row["min_status"])
        table.add(row["form"], row["kernel"], _count(row["max_seq_len"]), *least, LIMITS[row["limited_by"]])
    return table


def _count(number: int | None, status: str | None = None) -> str:
    """A number, and that it is tight where it is; a dash where there is none."""
    return "-" if number is None else f"{number:,}{' tight' if status == 'tight' else ''}"


def _fewest(rows: list[Mapping[str, Any]]) -> Iterator[RenderableType]:
    """The layout of the fewest devices, how much it leaves, and what plans it."""
    for row in rows:
        if row["min_layout"] is None:
            continue
        degrees = ", ".join(f"{axis} {size}" for axis, size in row["min_layout"].items())
        yield Text(f"{row['form']} on {row['min_devices']:,}: {degrees}: {row['min_status']}: {row['min_reason']}")
        if row["min_seconds"] is not None:
            yield Text(_fastest(row))
        yield Text(row["min_command"], no_wrap=True, overflow="ignore")  # on one line, to be copied whole
        if row["wider_command"] is not None:
            yield Text(f"Fewer devices at other {', '.join(WIDER)}? This search looks:")
            yield Text(row["wider_command"], no_wrap=True, overflow="ignore")


def _fastest(row: Mapping[str, Any]) -> str:
    """How fast the layout is, of how many, and how sure that is."""
    near = row["min_too_close"]
    close = f"; too close to call with {near:,} of them" if near else ""
    first = "the only layout" if row["min_layouts"] == 1 else f"the fastest of {row['min_layouts']:,} layouts"
    return (
        f"{first} on as few: {duration(row['min_seconds'])} a step, {row['min_tokens_per_second']:,.0f} tokens/s{close}"
    )


def _notes(rows: list[Mapping[str, Any]], *, notes: bool) -> Iterator[RenderableType]:
    told: dict[str, list[str]] = {}
    for row in rows:
        if row["reason"] and row["limited_by"] != "max_seq_len":
            told.setdefault(row["reason"], []).append(f"{row['device']} {row['form']}")
        for note in row["notes"] if notes else ():
            told.setdefault(note, []).append(f"{row['device']} {row['form']}")
    for reason, names in told.items():
        yield Text("")
        yield Text(f"{', '.join(names)}: {reason}")
