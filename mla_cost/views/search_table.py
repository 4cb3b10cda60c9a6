"""What a search found, for a terminal. Reads the JSON object."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from rich.console import Group, RenderableType
from rich.text import Text

from mla_cost.views import terminal
from mla_cost.views.grid import TextGrid
from mla_cost.views.parts import AT_WORST, STYLES, assumed
from mla_cost.views.rows import csv_text as rows_text
from mla_cost.views.times import duration
from mla_cost.views.units import gib

# the settings of a column each where rows differ in them, and of a line where they do not
SETTINGS: Final = (
    *("devices", "form", "scheme", "tp", "sp", "pp", "ep", "etp", "dp", "virtual_stages", "micro_batch"),
    *("micro_batches", "sharding", "remat"),
)
SHORT: Final = {"micro_batch": "mb", "micro_batches": "x", "virtual_stages": "vpp"}
FIGURES: Final = ("needs", "left", "worst", "sent", "between", "Tflop", "idle", "step", "tokens/s", "mfu", "variants")
UNTIMED: Final = ("needs", "left", "worst", "sent", "between", "Tflop", "idle", "weight", "variants")
WIDTH: Final = 120  # of a pipe
ORDERS: Final = {
    "devices": "devices",
    "time": "time of a step (most tokens a second)",
    "weight": "weight",
    "required": "required memory",
    "sent": "bytes sent",
    "flops": "flops",
    "idle": "idle share of the pipeline",
}
LISTED: Final = 8  # counts of devices that are reported one by one
SHOWN: Final = 20  # of the Pareto set
TIME, SENT = "memory left and time", "memory, bytes sent and flops"  # what such a set is of
CHECKED: Final = 8  # rows that are priced by `plan` too
NOTE: Final = (
    f"needs, left: required and free memory of one rank, GiB; {AT_WORST}. "
    "sent: in one optimizer step by the stage that sends most, "
    "GiB, and the per cent of it between nodes; Tflop: of the stage that runs most. mb, x: sequences of a micro-batch, "
    "and how many of those. idle: the share of a pipeline's schedule that a stage waits, (pp - 1) / (vpp x "
    "micro-batches + pp - 1). variants: more candidates of the same degrees that fit; the row is the first of them. "
    "What fits comes before what is tight. "
)
TIMED: Final = (
    "step, tokens/s, mfu: seconds of an optimizer step, tokens a second of all devices and model flops utilisation, as "
    "`plan` predicts them from the device's ceilings; ~: the band of those could turn the order with the first row "
    "(of the first {checked} rows, which plan has priced too). docs/time.md says what is not modelled."
)
WEIGHED: Final = (
    "weight: seconds in which the device's peak figures would do it all one "
    "after another, "
    "bubbles included: it ranks and predicts nothing, for kernels and overlap are not priced. A group wider than a "
    "node of {node} is taken to send between nodes, ranks in the order tp, sp, dp, pp."
)


def search_table(found: Mapping[str, Any], *, pareto: bool = False, notes: bool = True) -> RenderableType:
    """The whole answer. pareto: with those that no other beats. notes: with what was ruled out and words mean."""
    parts: list[RenderableType] = [Text(line) for line in (*_heading(found), *assumed(found["inputs"]))]
    if found["results"]:
        parts += [Text(""), *_table(found["results"], alone=False), *_close(found["results"])]
        parts += _winner(found["results"][0])
        parts += [Text(found["runner_up"][:1].upper() + found["runner_up"][1:] + ".")] if found["runner_up"] else []
    if found["nearest_miss"] is not None:
        parts += [Text(""), *_miss(found["nearest_miss"])]
    front, of = (found["time_pareto"], TIME) if found["time_pareto"] else (found["pareto"], SENT)
    if pareto and front:
        parts += [Text(""), Text(_front(front, of), style="bold"), *_table(front[:SHOWN])]
    parts += [Text(""), *_ruled(found["ruled_out"]), Text(_note(found), style="dim")] if notes else []
    return Group(*parts)


def search_text(found: Mapping[str, Any], width: int = WIDTH) -> str:
    """The answer as plain text without colour codes."""
    return terminal.text(search_table(found), width)


def show(found: Mapping[str, Any], *, pareto: bool = False, notes: bool = True) -> None:
    """Print the answer to a terminal or a pipe."""
    terminal.show(search_table(found, pareto=pareto, notes=notes), pipe=WIDTH)


def csv_text(columns: Sequence[str], candidates: Iterable[Mapping[str, Any]]) -> str:
    """Candidates as CSV; the bytes sent over each axis as `tp=1;dp x sp=2`."""
    rows = (
        {**row, "sent_by_axis": ";".join(f"{axis}={sent}" for axis, sent in row["sent_by_axis"].items())}
        for row in candidates
    )
    return rows_text(columns, rows)


def _note(found: Mapping[str, Any]) -> str:
    inputs, rows = found["inputs"], found["results"]
    if rows and rows[0]["seconds"] is not None and "weight" not in inputs["by"][:2]:
        return f"{NOTE}{TIMED.format(checked=CHECKED)}"
    rates = inputs["weights"]
    units = {"peak_bf16_dense_tflops": "Tflop/s", "intra_node_gb_s": "GB/s in a node", "inter_node_gb_s": "GB/s beyond"}
    reported = (f"{rates[name].partition(' ')[0]} {unit}{_doubt(rates[name])}" for name, unit in units.items())
    note = NOTE + WEIGHED.format(node=rates["devices_per_node"].partition(" ")[0])
    return f"{note} Peaks, with sources in `mla-cost show {inputs['device']}`: {', '.join(reported)}."


def _doubt(reported: str) -> str:
    return " (not verified)" if reported.endswith("not verified)") else ""


def _winner(row: Mapping[str, Any]) -> Iterator[RenderableType]:
    """What plans the first row; on a line of its own, so that it can be copied whole."""
    yield Text("The first, as a plan (every row has its own in --format json and csv):", style="bold")
    yield _unbroken(row["command"])


def _unbroken(command: str) -> Text:
    """A command on one line however long, so that it can be copied whole; terminals wrap it by themselves."""
    return Text(command, no_wrap=True, overflow="ignore")


def _heading(found: Mapping[str, Any]) -> Iterator[str]:
    inputs = found["inputs"]
    counts = ", ".join(f"{count:,} {status}" for status, count in found["counts"].items())
    yield f"{inputs['model_title']} on {_numbers(inputs['devices'])} x {inputs['device']} ({inputs['device_title']})"
    yield (
        f"{inputs['seq_len']:,} tokens, global batch {inputs['global_batch']:,}, {inputs['dtype']}, "
        f"profile {inputs['profile']}; "
        + ", ".join(f"{axis} at most {most}" for axis, most in inputs["limits"].items())
        + f", idle at most {inputs['max_idle']} % (--max-idle)"
    )
    ranking = [name for name in inputs["by"] if name != "devices" or len(inputs["devices"]) > 1]
    if all(row["seconds"] is None for row in found["results"]):
        ranking.remove("time")
    order = ", then ".join(ORDERS[name] for name in ranking)
    yield f"{found['candidates']:,} candidates: {counts or 'none is legal'}. Layouts in order of least {order}."


def _numbers(devices: Sequence[int]) -> str:
    if len(devices) > LISTED:
        return f"{devices[0]:,} to {devices[-1]:,} ({len(devices)} counts)"
    return " or ".join(f"{number:,}" for number in devices)


def _table(rows: Sequence[Mapping[str, Any]], *, alone: bool = True) -> Iterator[RenderableType]:
    """The rows, with their variants unless each stands `alone`; what all of them have in common is said in a line."""
    varying = [name for name in SETTINGS if len({row[name] for row in rows}) > 1]
    names = [SHORT.get(name, name) for name in varying]
    words = [SHORT.get(name, name) for name in varying if not isinstance(rows[0][name], int)]
    heads = UNTIMED if rows[0]["seconds"] is None else FIGURES
    table = TextGrid((*names, *(heads[:-1] if alone else heads), "verdict"), (*words, "verdict"))
    for row in rows:
        figures = list(_figures(row))[: -1 if alone else None]
        table.add(*(str(row[name]) for name in varying), *figures, Text(row["status"], STYLES[row["status"]]))
    yield table
    yield Text(_same(rows, [name for name in SETTINGS if name not in varying]))
    layouts = dict.fromkeys((row["pp"], row["virtual_stages"], row["pipeline_layout"]) for row in rows)
    for pp, chunks, layout in layouts:
        if layout is not None:
            parts = f"pp {pp}" if chunks == 1 else f"pp {pp} x virtual_stages {chunks}"
            yield Text(f"Layers at {parts}: pipeline_layout {layout}")


def _same(rows: Sequence[Mapping[str, Any]], names: Sequence[str]) -> str:
    """What all rows have, and the kernel of each form."""
    kernels = dict.fromkeys(f"{row['kernel']}{_padded(row)} for {row['form']}" for row in rows)
    found = ", ".join([*(f"{name} {rows[0][name]}" for name in names), f"kernel {', '.join(kernels)}"])
    return f"{'All have' if len(rows) > 1 else 'It has'} {found}."


def _padded(row: Mapping[str, Any]) -> str:
    return "" if row["value_padding"] in {None, "none"} else f" with value_padding {row['value_padding']}"


def _figures(row: Mapping[str, Any]) -> Iterator[str]:
    yield from (gib(row[name]) for name in ("required_bytes", "headroom_bytes", "least_headroom_bytes", "sent_bytes"))
    yield f"{100 * row['between_nodes_bytes'] / row['sent_bytes']:.0f} %" if row["sent_bytes"] else "0 %"
    yield f"{row['flops'] / 1e12:,.0f}"
    yield f"{100 * row['idle']:.0f} %"
    if row["seconds"] is None:
        yield f"{row['weight_seconds']:,.3f}" if row["weight_seconds"] < 10 else f"{row['weight_seconds']:,.1f}"
    else:
        yield f"{'~' if row['too_close'] else ''}{duration(row['seconds'])}"
        yield f"{row['tokens_per_second']:,.0f}"
        yield f"{100 * row['model_flops_utilisation']:.1f} %"
    yield f"{row['variants']:,}"


def _front(rows: Sequence[Any], of: str) -> str:
    less = f", the first {SHOWN}" if len(rows) > SHOWN else ""
    return f"None beats these {len(rows):,} in {of} at once{less}"


def _close(rows: Sequence[Mapping[str, Any]]) -> Iterator[RenderableType]:
    """Which rows the band of the device's ceilings could put before the first."""
    near = [str(at) for at, row in enumerate(rows, 1) if row["too_close"]]
    if near:
        yield Text(
            f"Too close to call by time: the first and row{'s' * (len(near) > 1)} {', '.join(near)}.", style="dim"
        )


def _miss(miss: Mapping[str, Any]) -> Iterator[RenderableType]:
    if miss["candidate"] is None:
        yield Text("Nothing is legal. What comes nearest:", style="bold")
        yield from (Text(f"  {problem}") for problem in miss["problems"])
    else:
        yield Text(f"Nothing fits. What comes nearest: {miss['reason']}", style="bold")
        yield from _table([miss["candidate"]])
    if miss["remedy"] is not None:
        yield Text.assemble(("What makes it fit on as many devices, or more of them: ", "bold"), miss["remedy"])
    if miss["more_devices"] is not None:
        number, tried = (
            miss["more_devices"]["devices"],
            ", ".join(f"{count:,}" for count in sorted(miss["tried_devices"])),
        )
        yield Text(f"Of the counts {tried}, this fits on the fewest, {number:,}:", style="bold")
        yield from _table([miss["more_devices"]])
        yield _unbroken(miss["more_devices"]["command"])


def _ruled(rows: Sequence[Mapping[str, Any]]) -> Iterator[RenderableType]:
    if not rows:
        return
    yield Text("Ruled out", style="bold")
    for row in rows:
        yield Text(f"{row['number']:,} {row['of']}, {row['rule']}: e.g. {row['example']}")
