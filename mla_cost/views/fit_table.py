"""What fits as a table over devices and forms. Reads the JSON object."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from mla_cost.views import terminal

LIMITS = {
    "memory": "",
    "max_seq_len": "or longer: --max-seq-len ends the search",
    "kernel": "unsupported: see below",
    "illegal": "illegal: see below",
}
ATTENTION = (
    "Not in this scope: everything but the attention block; --scope model prices the whole model. Kernels named eager "
    "hold S x S tensors; --kernel auto asks for the fused kernel that trains each form on each device."
)


def fit_table(found: Mapping[str, Any]) -> RenderableType:
    """The whole answer."""
    parts: list[RenderableType] = [Text(line) for line in _heading(found["inputs"])]
    parts.append(Text(_columns(found["inputs"]), style="dim"))
    for name, device in found["inputs"]["devices"].items():
        rows = [row for row in found["results"] if row["device"] == name]
        parts += [Text(""), Text(_device_line(name, device["title"], rows), style="bold"), _rows(rows)]
    parts += list(_notes(found["results"]))
    if found["inputs"]["scope"] == "attention":
        parts += [Text(""), Text(ATTENTION, style="dim")]
    return Group(*parts)


def fit_text(found: Mapping[str, Any], width: int = 80) -> str:
    """The answer as plain text without colour codes."""
    return terminal.text(fit_table(found), width)


def show(found: Mapping[str, Any]) -> None:
    """Print the answer to a terminal or a pipe; 80 columns suffice."""
    terminal.show(fit_table(found))


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
        "with sp, pp, ep and dp chosen for it, tp and micro_batches as asked"
        if inputs["scope"] == "model"
        else "that share a block"
    )
    return (
        f"longest: tokens in a sequence, all ranks together. least sp: for {target} tokens, all else as asked. fewest: "
        f"devices for {target} tokens, {fewest}."
    )


def _device_line(name: str, title: str, rows: list[Mapping[str, Any]]) -> str:
    usable = next((row["usable_bytes"] for row in rows if row["usable_bytes"] is not None), None)
    return f"{name} ({title})" + ("" if usable is None else f": usable {usable / 2**30:,.2f} GiB")


def _rows(rows: list[Mapping[str, Any]]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1, 0, 0))
    for name in ("form", "kernel"):
        table.add_column(name, no_wrap=True)
    for name in ("longest", "least sp", "fewest"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("", overflow="fold")
    for row in rows:
        numbers = (row["max_seq_len"], row["min_sp"], row["min_devices"])
        table.add_row(row["form"], row["kernel"], *map(_count, numbers), _remark(row))
    return table


def _count(number: int | None) -> str:
    return "-" if number is None else f"{number:,}"


def _remark(row: Mapping[str, Any]) -> str:
    """Why there is no number, or the degrees of the fewest devices."""
    said = LIMITS[row["limited_by"]]
    layout = row["min_layout"] if row["scope"] == "model" else None
    degrees = "" if layout is None else " ".join(f"{axis} {size}" for axis, size in layout.items() if size != 1)
    return "; ".join(part for part in (said, degrees and f"fewest: {degrees}") if part)


def _notes(rows: list[Mapping[str, Any]]) -> Iterator[RenderableType]:
    told: dict[str, list[str]] = {}
    for row in rows:
        if row["reason"] and row["limited_by"] != "max_seq_len":
            told.setdefault(row["reason"], []).append(f"{row['device']} {row['form']}")
        for note in row["notes"]:
            told.setdefault(note, []).append(f"{row['device']} {row['form']}")
    for reason, names in told.items():
        yield Text("")
        yield Text(f"{', '.join(names)}: {reason}")
