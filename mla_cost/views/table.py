"""A plan as a table that a person can read in ten seconds, then what drives it."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from mla_cost.results import Plan, Result, TensorCost
from mla_cost.views import terminal
from mla_cost.views.grid import TextGrid
from mla_cost.views.parts import (
    also_set,
    assumed,
    by_device,
    device_line,
    items,
    note_lines,
    other_memory,
    refused,
    verdict_text,
)
from mla_cost.views.times import block_times
from mla_cost.views.units import gib, readable, sent, signed

LARGEST = 4  # tensors listed per form
TOLD = frozenset(
    {"scope", "seq_len", "sp", "micro_batch", "dtype", "layers", "kernel", "other_memory"}
)  # by the heading
LEFT_OUT = (
    "Not in this scope: MLP or MoE, embedding, loss, optimizer states and master weights, gradient buffers of other "
    "layers, weight-gradient reduction, allocator rounding and fragmentation, library workspaces."
)
COLUMNS = (
    "GiB on one rank. saved: kept between forward and backward. peak: live tensors with input, output and their "
    "gradients. allocated: that plus weights, their gradients and kernel workspace. fwd, bwd: sent."
)


def plan_table(plan: Plan, *, bars: bool = False, notes: bool = True) -> RenderableType:
    """The whole answer. bars: a bar for every form, or of a model for every stage. notes: with the small print."""
    if plan.inputs["scope"] == "model":
        from mla_cost.views.model_table import model_table

        return Group(model_table(plan, every_stage=bars, notes=notes), *_levers(plan))
    parts: list[RenderableType] = [Text(_heading(plan)), *map(Text, assumed(plan.inputs))]
    parts += [Text(COLUMNS, style="dim")] if notes else []
    for device, results in by_device(plan):
        parts += [Text(""), Text(device_line(plan, device, results), style="bold"), _verdicts(results)]
        reported = [(r.form, r.verdict.reason) for r in results if r.verdict is not None and refused(r)]
        parts += [items(reported)] if reported else []
        parts += block_times(results)
    if bars:
        from mla_cost.views.bars import form_bars

        parts += form_bars(plan)
    parts += [Text(""), *_drivers(plan)]
    parts += [Text(""), *_beside(plan), *_fused(plan)]
    parts += [Text(""), *_small_print(plan)] if notes else []
    parts += _levers(plan)
    return Group(*parts)


def _levers(plan: Plan) -> Iterable[RenderableType]:
    if not any(result.verdict and (result.verdict.levers or result.verdict.remedy) for result in plan.results):
        return ()
    from mla_cost.views.levers import levers_table

    return levers_table(plan)


def plan_text(plan: Plan, width: int = 80) -> str:
    """The answer as plain text without colour codes."""
    return terminal.text(plan_table(plan), width)


def plan_html(plan: Plan) -> str:
    """The answer as a block of HTML for a notebook."""
    console = Console(file=io.StringIO(), width=100, record=True)
    console.print(plan_table(plan), highlight=False)
    return console.export_html(inline_styles=True, code_format='<pre style="line-height:normal">{code}</pre>')


def _heading(plan: Plan) -> str:
    inputs = plan.inputs
    layers, sp = inputs["layers"], inputs["sp"]
    blocks = "one attention block" if layers == 1 else f"{layers} attention blocks"
    reported = [f"{inputs['seq_len'] // sp:,} positions per rank"] * (sp > 1) + [inputs["sp_default"]]
    share = f"sp {sp}" + (f" ({'; '.join(filter(None, reported))})" if any(reported) else "")
    about = [blocks, f"{inputs['seq_len']:,} tokens", share, f"micro-batch {inputs['micro_batch']}", inputs["dtype"]]
    also = also_set(inputs["changed"], TOLD)
    lines = [f"{inputs['model_title']}: {', '.join(about)}, kernel {inputs['kernel']}{other_memory(plan)}{also}"]
    mla, every = inputs["num_mla_layers"], inputs["num_layers"]
    if mla is not None and every is not None and mla < every:
        lines.append(f"Hybrid model: {mla} of its {every} layers are MLA; these are priced.")
    return "\n".join(lines)


def _verdicts(results: Iterable[Result]) -> TextGrid:
    table = TextGrid(("form", "saved", "peak", "allocated", "fwd", "bwd", "verdict"), left=("form", "verdict"))
    for result in results:
        memory, traffic = result.memory, result.communication
        table.add(
            result.form,
            gib(memory.saved_bytes),
            gib(memory.peak_bytes),
            gib(memory.allocated_peak_bytes),
            sent(traffic.forward.wire_bytes),
            sent(traffic.backward.wire_bytes),
            verdict_text(result),
        )
    return table


# ---- what drives the differences


def _drivers(plan: Plan) -> Iterator[RenderableType]:
    device, results = next(by_device(plan))
    priced = [result for result in results if result.memory.saved_bytes is not None]
    if not priced:
        return
    yield Text("Largest tensors at the peak (GiB; * saved for backward)", style="bold")
    yield items((result.form, _largest(result.memory.tensors)) for result in priced)
    compared = [result for result in priced if any(_changes(result))]
    if compared:
        where = f" on {device}" if device else ""
        yield Text("")
        yield Text(f"Against {_baseline(priced)}, one block{where} (GiB: saved, at the allocated peak)", style="bold")
        yield _comparison(compared)


def _baseline(results: list[Result]) -> str:
    return next(
        (result.form for result in results if result.compared_to_explicit and not any(_changes(result))),
        "explicit form",
    )


def _changes(result: Result) -> Iterator[int]:
    for row in result.compared_to_explicit:
        yield from (row.saved_delta_bytes, row.peak_delta_bytes, row.allocated_peak_delta_bytes)


def _largest(tensors: Iterable[TensorCost]) -> str:
    alive = sorted((t for t in tensors if t.alive_at_peak), key=lambda t: -t.bytes)[:LARGEST]
    return ", ".join(f"{t.name}{'*' * t.saved} {gib(t.bytes)}" for t in alive)


def _comparison(results: Iterable[Result]) -> RenderableType:
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column()
    table.add_column()
    table.add_column(justify="right")
    table.add_column(justify="right")
    for result in results:
        name = f"  {result.form}"
        for row in result.compared_to_explicit:
            if row.saved_delta_bytes or row.allocated_peak_delta_bytes:
                table.add_row(name, row.tensor, signed(row.saved_delta_bytes), signed(row.allocated_peak_delta_bytes))
                name = ""
    return table


# ---- fused kernels and small print


def _fused(plan: Plan) -> Iterator[RenderableType]:
    rows = [(d, r) for d, results in by_device(plan) for r in results if r.verdict and r.memory.saved_bytes is not None]
    if not rows:
        return
    yield Text("Fused kernels that would train it, and what one block saves under them", style="bold")
    yield items((f"{device} {result.form}", _options(result)) for device, result in rows)


def _beside(plan: Plan) -> Iterator[RenderableType]:
    """The same blocks op by op, where their kernel was chosen for them."""
    rows = [(device, r, r.beside) for device, results in by_device(plan) for r in results if r.beside is not None]
    if not rows:
        return
    yield Text(f"Beside it, kernel {rows[0][2].kernel} (GiB: saved, peak, allocated)", style="bold")
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    for _ in range(3):
        table.add_column(justify="right", no_wrap=True)
    table.add_column(overflow="fold")
    for device, row, found in rows:
        amounts = found.saved_bytes, found.peak_bytes, found.allocated_peak_bytes
        table.add_row(f"  {device or ''} {row.form}", *map(gib, amounts), found.reason)
    yield table
    yield Text("")


def _options(result: Result) -> str:
    assert result.verdict is not None
    found: dict[str, str] = {}
    for option in result.verdict.fused_kernels:
        padded = " (V padded)" if option.value_padding != "none" else ""
        found.setdefault(option.kernel, f"{option.kernel}{padded} {readable(option.saved_bytes)}")
    return ", ".join(found.values()) or "none that we know of"


def _holds_scores(result: Result) -> bool:
    """Whether a kernel keeps probabilities, so that a softmax runs on its own."""
    return any(tensor.name.startswith("probabilities") for tensor in result.memory.tensors)


def _small_print(plan: Plan) -> Iterator[RenderableType]:
    yield from map(Text, note_lines(plan))
    if any(_holds_scores(result) or result.beside is not None for result in plan.results):
        for name, facts in plan.inputs["devices"].items():
            yield Text(f"{name}: {facts['softmax_workspace']}", style="dim")
        if not plan.inputs["devices"]:
            yield Text("Without a device no kernel workspace is counted: it differs by device family.", style="dim")
    yield Text(LEFT_OUT, style="dim")


def show(plan: Plan, file: Any = None, *, bars: bool = False, notes: bool = True) -> None:
    """Print the answer to a terminal or a pipe: colour only in a terminal that wants it, 80 columns suffice."""
    terminal.show(plan_table(plan, bars=bars, notes=notes), file)
