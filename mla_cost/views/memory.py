"""Pictures of memory (matplotlib, an extra): live bytes over time, and what every pipeline stage holds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

from mla_cost.results import Result, Stage
from mla_cost.views.drawing import save

GIB: Final = 2**30
GREYS: Final = {
    "weights": "#8C8C8C",
    "the other blocks": "#B4B4B4",
    "everything else": "#D9D9D9",
    "weights, gradients, optimizer": "#787878",
    "buffers that stand": "#8C8C8C",
    "other micro-batches": "#A5A5A5",
    "kept by the layers before": "#BEBEBE",
}
# Okabe and Ito's palette, told apart by everybody
COLOURS: Final = ("#0072B2", "#56B4E9", "#009E73", "#E69F00", "#CC79A7", "#F0E442", "#882255", "#44AA99")
WORKSPACE: Final = "#D55E00"
PARTS: Final = (
    ("weights", "weight_bytes", "#0072B2"),
    ("gradients", "gradient_bytes", "#56B4E9"),
    ("optimizer", "optimizer_bytes", "#009E73"),
    ("kept in flight", "kept_bytes", "#E69F00"),
    ("working", "working_bytes", "#D55E00"),
)


class DrawnBand(Protocol):
    """A name and its bytes over the events."""

    @property
    def name(self) -> str: ...
    @property
    def bytes(self) -> tuple[int, ...]: ...


class DrawnTimeline(NamedTuple):
    """Live bytes over the events of a block, ready to be drawn; fields as in mla_cost.explaining.pictures."""

    title: str
    usable_bytes: int | None
    ops: Sequence[str]
    phases: Sequence[str]
    peak: int
    layers: Sequence[DrawnBand]


# ---- over time


def draw_timelines(path: Path, title: str, timelines: Sequence[DrawnTimeline]) -> None:
    """Write the picture as the file's name says (.png or .svg), a panel for each timeline, all on one scale."""
    figure, panels = _figure(len(timelines), title, height=3.3)
    most = max(max(_totals(it)) for it in timelines) / GIB
    for axes, it in zip(panels, timelines, strict=True):
        _timeline(axes, it, most)
    save(figure, path)


def _totals(it: DrawnTimeline) -> list[int]:
    return [sum(amounts) for amounts in zip(*(layer.bytes for layer in it.layers), strict=True)]


def _timeline(axes: Any, it: DrawnTimeline, most: float) -> None:
    totals, count = _totals(it), len(it.ops)
    floor = [0.0] * (count + 1)
    colours = iter(COLOURS)
    for layer in it.layers:
        colour = GREYS.get(layer.name) or (WORKSPACE if layer.name == "kernel workspace" else next(colours))
        amounts = [amount / GIB for amount in (*layer.bytes, layer.bytes[-1])]
        top = [below + amount for below, amount in zip(floor, amounts, strict=True)]
        at_peak, most_of_it = layer.bytes[it.peak] / GIB, max(layer.bytes) / GIB
        amount = f"{at_peak:.2f}" if at_peak else f"0 (elsewhere {most_of_it:.2f})"
        axes.fill_between(
            range(count + 1), floor, top, step="post", facecolor=colour, linewidth=0, label=f"{layer.name}, {amount}"
        )
        floor = top
    axes.plot(range(count + 1), floor, drawstyle="steps-post", color="#000000", linewidth=0.8)
    axes.set_xlim(0, count)
    low, high = _scale(it, most)
    axes.set_ylim(low, high)
    axes.set_ylabel("GiB on one rank" if low == 0 else f"GiB on one rank, from {low:.0f}")
    _mark_peak(axes, it, totals[it.peak] / GIB, high)
    _op_ticks(axes, it)
    _dress(axes, it.title)
    _legend(axes, "alive at the peak, GiB")


def _scale(it: DrawnTimeline, most: float) -> tuple[float, float]:
    """The ends of the scale, GiB: what never changes is cut where it would leave little room for what does."""
    still = sum(layer.bytes[0] for layer in it.layers if len(set(layer.bytes)) == 1) / GIB
    highest = max(_totals(it)) / GIB
    if still * 2 < highest:
        return 0, most * 1.16
    room = highest - still
    return float(int(max(still - room * 0.2, 0))), highest + room * 0.25


def _mark_peak(axes: Any, it: DrawnTimeline, peak: float, high: float) -> None:
    place = it.peak + 0.5
    text = f"peak {peak:.2f} GiB, {it.phases[it.peak]} of {it.ops[it.peak]}"
    left = place > len(it.ops) / 2
    axes.annotate(
        text,
        (place, peak),
        (place + (-1.5 if left else 1.5), peak + (high - peak) * 0.6),
        ha="right" if left else "left",
        va="center",
        fontsize=8,
        arrowprops={"arrowstyle": "-", "linewidth": 0.8},
    )
    if it.usable_bytes is not None and axes.get_ylim()[0] < it.usable_bytes / GIB < high:
        axes.axhline(it.usable_bytes / GIB, color="#000000", linewidth=1, linestyle="--")


def _op_ticks(axes: Any, it: DrawnTimeline) -> None:
    """The op of each run of events, and a line where backward begins."""
    places, names, place = [], [], 0
    for (phase, op), run in groupby(zip(it.phases, it.ops, strict=True)):
        length = len(list(run))
        places.append(place + length / 2)
        names.append(op if phase == "forward" else f"{op} '")
        place += length
    axes.set_xticks(places, names, rotation=90, fontsize=6)
    starts = [index for index, phase in enumerate(it.phases) if phase != "forward"]
    if starts and starts[0] > 0:
        axes.axvline(starts[0], color="#000000", linewidth=0.6, linestyle=":")
    axes.set_xlabel("allocations and frees in order, by op ( ' in backward)", fontsize=8)


# ---- per stage


def draw_model(path: Path, title: str, results: Sequence[Result], timelines: Sequence[DrawnTimeline]) -> None:
    """Write the picture as the file's name says: every stage of each result as a bar, then live bytes over time."""
    figure, panels = _figure(len(results) + len(timelines), title, height=3.1)
    usable = [r.verdict.usable_bytes for r in results if r.verdict and r.verdict.usable_bytes]
    peaks = [stage.allocated_peak_bytes for r in results for stage in r.memory.stages or ()]
    most = max([*peaks, *usable]) / GIB
    for axes, result in zip(panels, results, strict=False):
        _stages(axes, result, most)
    tallest = max((max(_totals(it)) for it in timelines), default=0) / GIB
    for axes, it in zip(panels[len(results) :], timelines, strict=True):
        _timeline(axes, it, tallest)
    save(figure, path)


def _stages(axes: Any, result: Result, most: float) -> None:
    stages = result.memory.stages or ()
    floor = [0.0] * len(stages)
    for name, colour, amounts in _parts(stages):
        axes.bar(range(len(stages)), amounts, bottom=floor, width=0.8, color=colour, label=name)
        floor = [below + amount for below, amount in zip(floor, amounts, strict=True)]
    for place, stage in enumerate(stages if len(stages) <= 24 else ()):
        total = stage.allocated_peak_bytes / GIB
        back = {"facecolor": "#FFFFFF", "edgecolor": "none", "pad": 0.6}
        height = floor[place] + most * 0.015
        axes.text(place, height, f"{total:.0f}", ha="center", va="bottom", fontsize=7, bbox=back, zorder=4)
    if result.verdict is not None and result.verdict.usable_bytes is not None:
        usable = result.verdict.usable_bytes / GIB
        axes.axhline(usable, color="#000000", linewidth=1, linestyle="--", label=f"usable, {usable:.1f}")
    axes.set_xticks(range(len(stages)), [_stage_name(stage) for stage in stages], fontsize=7)
    axes.set_xlim(-0.6, max(len(stages), 3) - 0.4)
    axes.set_ylim(0, most * 1.1)
    axes.set_ylabel("GiB on one rank")
    axes.set_xlabel("stage, its layers (E embedding, m MTP, L loss)", fontsize=8)
    status = f": {result.verdict.status}" if result.verdict is not None else ""
    where = f" on {result.device}" if result.device else ""
    _dress(axes, f"{result.form}, kernel {result.kernel}{where}{status}")
    _legend(axes, None)


def _parts(stages: Sequence[Stage]) -> Iterator[tuple[str, str, list[float]]]:
    """Name, colour and GiB of each part on every stage; buffers that have no field of their own where they are seen."""
    for name, field, colour in PARTS:
        yield name, colour, [getattr(stage, field) / GIB for stage in stages]
    fields = [field for _, field, _ in PARTS]
    rest = [stage.allocated_peak_bytes - sum(getattr(stage, field) for field in fields) for stage in stages]
    if any(amount * 100 > stage.allocated_peak_bytes for amount, stage in zip(rest, stages, strict=True)):
        yield "buffers", "#CC79A7", [amount / GIB for amount in rest]


def _stage_name(stage: Stage) -> str:
    return f"{stage.stage}\n{'E' * stage.embedding}{stage.layers}{'m' * stage.mtp_modules}{'L' * stage.loss}"


# ---- what both share


def _figure(count: int, title: str, height: float, width: float = 10) -> tuple[Any, list[Any]]:
    from textwrap import fill

    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height * count + 0.5), layout="constrained", dpi=150)
    figure.suptitle(fill(title, int(width * 11.5)), fontsize=11)
    return figure, [row[0] for row in figure.subplots(count, 1, squeeze=False)]


def _dress(axes: Any, title: str) -> None:
    axes.set_title(title, fontsize=10, loc="left")
    axes.tick_params(axis="y", labelsize=8)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _legend(axes: Any, title: str | None) -> None:
    """Beside the panel, in the order of the layers from the top down."""
    handles, labels = axes.get_legend_handles_labels()
    axes.legend(
        handles[::-1],
        labels[::-1],
        title=title,
        loc="upper left",
        bbox_to_anchor=(1.01, 1),
        frameon=False,
        fontsize=8,
        title_fontsize=8,
    )
