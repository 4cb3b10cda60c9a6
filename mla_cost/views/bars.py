"""What a rank holds as stacked bars for a terminal: one bar per pipeline stage, or per form."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from rich.console import Console, ConsoleOptions, RenderableType
from rich.text import Text

from mla_cost.results import Plan, Result, Stage
from mla_cost.views.units import gib

WIDTH: Final = 54  # cells of the longest bar; with label and number a line has less than 80
BESIDE: Final = 10  # columns of a bar's number, the blanks around it and the line of what is usable
MOST: Final = 16  # bars that are drawn unasked
LIMIT: Final = "│"
# glyphs differ without colour, colours are Okabe and Ito's
LOOK: Final = (
    ("█", "#0072B2"),
    ("▓", "#56B4E9"),
    ("▒", "#009E73"),
    ("░", "#E69F00"),
    ("▚", "#D55E00"),
    ("╱", "#CC79A7"),
)


# the parts of a block's breakdown, from the left, by the words of a narrow legend
SHORT: Final = {
    "parameters": "weights",
    "parameter gradients of one block": "gradients",
    "the other blocks": "other blocks",
    "tensors of one block": "tensors",
    "kernel workspace": "workspace",
}


class Bar(NamedTuple):
    """One bar. parts: bytes of each part, in the order of the legend."""

    label: str
    parts: tuple[int, ...]

    @property
    def total(self) -> int:
        """Bytes of all parts."""
        return sum(self.parts)


def stage_bars(result: Result, shown: Iterable[Stage]) -> Iterator[RenderableType]:
    """The stages of a form, each a bar, with what is usable as a line across them."""
    names = ("weights", "gradients", "optimizer", "kept", "working", "buffers")
    fields = [f"{name}_bytes" for name in ("weight", "gradient", "optimizer", "kept", "working")]
    bars = [_stage_bar(stage, fields) for stage in shown]
    return _chart(names, bars, _usable(result))


def _stage_bar(stage: Stage, fields: Sequence[str]) -> Bar:
    """A stage's parts, and the buffers, which have no column of their own."""
    parts = [getattr(stage, field) for field in fields]
    return Bar(f"stage {stage.stage}", (*parts, stage.allocated_peak_bytes - sum(parts)))


def form_bars(plan: Plan) -> Iterator[RenderableType]:
    """The forms of the attention scope on each device, each a bar of its breakdown."""
    for device in dict.fromkeys(result.device for result in plan.results):
        priced = [r for r in plan.results if r.device == device and r.memory.breakdown]
        if priced:
            bars = [Bar(result.form, _parts(result)) for result in priced]
            yield Text(f"\nAllocated peak{f' on {device}' if device else ''} (GiB)", style="bold")
            yield from _chart(tuple(SHORT.values()), bars, _usable(priced[0]))


def _parts(result: Result) -> tuple[int, ...]:
    found = {part.name: part.bytes for part in result.memory.breakdown}
    return tuple(found.get(name, 0) for name in SHORT)


def _usable(result: Result) -> int | None:
    return result.verdict.usable_bytes if result.verdict is not None else None


def _chart(names: Sequence[str], bars: Sequence[Bar], usable: int | None) -> Iterator[RenderableType]:
    yield _Chart(tuple(names), tuple(bars), usable)


class _Chart(NamedTuple):
    """Bars under one scale, as long as the terminal lets them be."""

    names: tuple[str, ...]
    bars: tuple[Bar, ...]
    usable: int | None

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        scale = max(*(bar.total for bar in self.bars), self.usable or 0)
        label = max(len(bar.label) for bar in self.bars)
        width = max(1, min(WIDTH, options.max_width - label - BESIDE))
        drawn = [_cells(bar, scale, self.usable, width) for bar in self.bars]
        for bar, cells in zip(self.bars, drawn, strict=True):
            yield _line(bar, cells, label)
        seen = {cell for cells in drawn for cell in cells}
        looks = enumerate(zip(self.names, LOOK, strict=False))
        shown = [(name, *look) for index, (name, look) in looks if index in seen]
        yield _legend(shown, label, self.usable, options.max_width)


def _cells(bar: Bar, scale: int, usable: int | None, width: int) -> list[int | str]:
    """What each cell of a line shows: the number of a part, the line of what is usable, or nothing."""
    ends = [round(sum(bar.parts[: index + 1]) * width / scale) for index in range(len(bar.parts))]
    cells = [next((index for index, end in enumerate(ends) if cell < end), " ") for cell in range(width + 1)]
    if usable is not None:
        cells[min(round(usable * width / scale), width)] = LIMIT
    return cells


def _line(bar: Bar, cells: Iterable[int | str], label: int) -> Text:
    line = Text(f"{bar.label:<{label}} {gib(bar.total):>7} ", no_wrap=True)
    for cell in cells:
        if isinstance(cell, int):
            line.append(*LOOK[cell])
        else:
            line.append(cell, "bold" if cell == LIMIT else "")
    line.rstrip()
    return line


def _legend(shown: Iterable[tuple[str, str, str]], label: int, usable: int | None, width: int) -> Text:
    """The name, glyph and colour of every part that has a cell, and the line."""
    line = Text()
    for name, glyph, colour in shown:
        line.append(glyph, colour).append(f" {name} ")
    if usable is not None:
        line.append(f"{LIMIT} usable {gib(usable)}")
    indent = " " * (label + 9)
    return Text(indent) + line if len(line) + len(indent) < width else line
