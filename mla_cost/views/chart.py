"""Charts as plain shapes, for pages that draw them as inline SVG: geometry only, in units of the drawing.

Words are not escaped here: who writes them into a page does that.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Final, NamedTuple

from mla_cost.results import Communication, Result, Stage
from mla_cost.views.memory import GIB, DrawnTimeline

WIDTH: Final = 960
LEFT: Final = 64
RIGHT: Final = 14
TOP: Final = 18
COLOURS: Final = 8  # that a page has; a shape names one by its number, and GREYS stand for what does not move
STILL: Final = "g"
PARTS: Final = (
    ("weights", "weight_bytes"),
    ("gradients", "gradient_bytes"),
    ("optimizer", "optimizer_bytes"),
    ("kept in flight", "kept_bytes"),
    ("working", "working_bytes"),
)


class Area(NamedTuple):
    """A filled path. look: the number of its colour, or g and a number for a grey."""

    path: str
    look: str
    name: str


class ChartWords(NamedTuple):
    """A text at a place. anchor: start, middle or end; turned: by a quarter, upwards."""

    x: float
    y: float
    text: str
    anchor: str = "middle"
    turned: bool = False


class Stroke(NamedTuple):
    """A straight line; dashed for a limit."""

    x1: float
    y1: float
    x2: float
    y2: float
    dashed: bool = False


class Chart(NamedTuple):
    """A drawing. title, description: what somebody who does not see it is told. legend: look, name and amount."""

    title: str
    description: str
    height: int
    areas: tuple[Area, ...]
    lines: tuple[Stroke, ...]
    words: tuple[ChartWords, ...]
    legend: tuple[tuple[str, str, str], ...] = ()


# ---- over time


def timeline(it: DrawnTimeline) -> Chart:
    """Live bytes over the events around the peak, stacked, with the op of each run of events below."""
    totals = [sum(amounts) for amounts in zip(*(layer.bytes for layer in it.layers), strict=True)]
    still = sum(layer.bytes[0] for layer in it.layers if len(set(layer.bytes)) == 1)
    low = 0 if still * 2 < max(totals) else int((still - (max(totals) - still) * 0.2) // GIB) * GIB
    scale = _Scale(max(low, 0), max(totals) * 1.05 - low * 0.05, 300)
    looks = _looks([len(set(layer.bytes)) == 1 for layer in it.layers])
    across = (WIDTH - LEFT - RIGHT) / len(it.ops)
    floor, areas = [0] * len(it.ops), []
    for look, layer in zip(looks, it.layers, strict=True):
        top = [below + amount for below, amount in zip(floor, layer.bytes, strict=True)]
        areas.append(Area(_stack(top, floor, scale, across), look, layer.name))
        floor = top
    peak, event = totals[it.peak] / GIB, f"{it.phases[it.peak]} of {it.ops[it.peak]}"
    place = LEFT + (it.peak + 0.5) * across
    left = it.peak * 2 > len(it.ops)
    marked = ChartWords(
        place + (-8 if left else 8), TOP - 5, f"peak {peak:,.2f} GiB, {event}", "end" if left else "start"
    )
    lines = [*scale.grid(), Stroke(place, TOP - 8, place, scale.y(totals[it.peak]))]
    if it.usable_bytes is not None and scale.low < it.usable_bytes < scale.high:
        at = scale.y(it.usable_bytes)
        lines.append(Stroke(LEFT, at, WIDTH - RIGHT, at, dashed=True))
    return Chart(
        title=it.title,
        description=f"Stacked areas of live GiB; the peak is {peak:,.2f} GiB, in {event}.",
        height=scale.bottom + 16 + round(6.5 * max(map(len, it.ops))),
        areas=tuple(areas),
        lines=tuple(lines),
        words=(marked, *scale.numbers(), *_ops(it, across, scale.bottom)),
        legend=tuple(
            (look, layer.name, f"{layer.bytes[it.peak] / GIB:,.2f}")
            for look, layer in zip(looks, it.layers, strict=True)
        ),
    )


def _looks(still: Sequence[bool]) -> list[str]:
    """A colour for each that moves, a grey for each that does not."""
    numbers = {True: iter(range(len(still))), False: iter(range(len(still)))}
    return [f"{STILL if flat else 'c'}{next(numbers[flat]) % COLOURS}" for flat in still]


def _ops(it: DrawnTimeline, across: float, bottom: int) -> Iterator[ChartWords]:
    place, taken = 0, -99.0
    for (phase, op), run in groupby(zip(it.phases, it.ops, strict=True)):
        length = len(list(run))
        x = LEFT + (place + length / 2) * across + 3
        if x - taken > 11:
            yield ChartWords(round(x, 1), bottom + 6, op if phase == "forward" else f"{op} ′", "end", turned=True)
            taken = x
        place += length


class _Scale(NamedTuple):
    """Bytes upwards: from low at the bottom to high at the top."""

    low: float
    high: float
    room: int

    @property
    def bottom(self) -> int:
        return TOP + self.room

    def y(self, amount: float) -> float:
        """The height of an amount; what lies below the lower end is not drawn."""
        part = (max(amount, self.low) - self.low) / (self.high - self.low)
        return round(self.bottom - part * self.room, 1)

    def steps(self) -> Iterator[float]:
        """Round numbers of GiB between the ends."""
        span = (self.high - self.low) / GIB
        step = next(width for width in _widths() if span / width <= 6)
        at = math.ceil(self.low / GIB / step) * step
        while at * GIB <= self.high:
            yield at
            at += step

    def grid(self) -> Iterator[Stroke]:
        for at in self.steps():
            yield Stroke(LEFT - 4, self.y(at * GIB), LEFT, self.y(at * GIB))

    def numbers(self) -> Iterator[ChartWords]:
        for at in self.steps():
            yield ChartWords(LEFT - 8, self.y(at * GIB) + 4, f"{at:,.10g}", "end")
        start = f", from {self.low / GIB:,.0f}" if self.low else ""
        yield ChartWords(16, TOP + self.room / 2, f"GiB on one rank{start}", turned=True)


def _widths() -> Iterator[float]:
    power = -3
    while True:
        yield from (factor * 10.0**power for factor in (1, 2, 5))
        power += 1


def _stack(top: Sequence[float], floor: Sequence[float], scale: _Scale, across: float) -> str:
    """The outline of a layer in steps: along its top from the left, back along its floor."""
    there = _steps([scale.y(amount) for amount in top], across)
    back = _steps([scale.y(amount) for amount in reversed(floor)], -across)
    return f"M{LEFT} {scale.y(top[0])}{there}{back}Z"


def _steps(heights: Sequence[float], across: float) -> str:
    """V and H commands: a height, how far it holds, the next height."""
    x = LEFT if across > 0 else LEFT - len(heights) * across
    found = []
    for height, run in groupby(heights):
        x += across * len(list(run))
        found.append(f"V{height}H{round(x, 1)}")
    return "".join(found)


# ---- stages and communication


def stages(result: Result) -> Chart:
    """What every pipeline stage holds at its peak: a stacked bar each, with what is usable as a line."""
    found = result.memory.stages or ()
    parts = [(name, [getattr(stage, field) for stage in found]) for name, field in PARTS]
    rest = [it.allocated_peak_bytes - sum(amounts[at] for _, amounts in parts) for at, it in enumerate(found)]
    parts.append(("buffers", rest))
    usable = result.verdict.usable_bytes if result.verdict is not None else None
    scale = _Scale(0, max(*(it.allocated_peak_bytes for it in found), usable or 0) * 1.1, 230)
    across = (WIDTH - LEFT - RIGHT) / len(found)
    bar = min(across * 0.8, 90)
    words = [*scale.numbers(), *_stage_words(found, scale, across)]
    lines = [*scale.grid(), Stroke(LEFT, scale.bottom, WIDTH - RIGHT, scale.bottom)]
    if usable is not None:
        lines.append(Stroke(LEFT, scale.y(usable), WIDTH - RIGHT, scale.y(usable), dashed=True))
        words.append(ChartWords(WIDTH - RIGHT, scale.y(usable) - 5, f"usable {usable / GIB:,.2f}", "end"))
    worst = max(found, key=lambda stage: stage.allocated_peak_bytes)
    seen = max(it.allocated_peak_bytes for it in found) // 500  # what is less has no height
    shown = [(f"c{at}", name, amounts) for at, (name, amounts) in enumerate(parts) if max(amounts) > seen]
    return Chart(
        title=f"What every stage holds under {result.form}",
        description=f"Stage {worst.stage} holds most, {worst.allocated_peak_bytes / GIB:,.2f} GiB.",
        height=scale.bottom + 44,
        areas=tuple(_bars([amounts for _, _, amounts in shown], [look for look, _, _ in shown], scale, across, bar)),
        lines=tuple(lines),
        words=tuple(words),
        legend=tuple((look, name, "") for look, name, _ in shown),
    )


def _bars(
    parts: Sequence[Sequence[int]], looks: Sequence[str], scale: _Scale, across: float, bar: float
) -> Iterator[Area]:
    floor = [0] * len(parts[0])
    for amounts, look in zip(parts, looks, strict=True):
        path = ""
        for at, amount in enumerate(amounts):
            x, low, high = (
                round(LEFT + (at + 0.5) * across - bar / 2, 1),
                scale.y(floor[at]),
                scale.y(floor[at] + amount),
            )
            path += f"M{x},{low}V{high}h{round(bar, 1)}V{low}Z" if amount else ""
            floor[at] += amount
        yield Area(path, look, "")


def _stage_words(found: Sequence[Stage], scale: _Scale, across: float) -> Iterator[ChartWords]:
    for at, stage in enumerate(found):
        x = round(LEFT + (at + 0.5) * across, 1)
        if len(found) <= 24:
            yield ChartWords(x, scale.y(stage.allocated_peak_bytes) - 5, f"{stage.allocated_peak_bytes / GIB:,.1f}")
        if len(found) <= 32 or at % 4 == 0:
            yield ChartWords(x, scale.bottom + 16, str(stage.stage))
    yield ChartWords(LEFT + (WIDTH - LEFT - RIGHT) / 2, scale.bottom + 36, "pipeline stage")


class AxisSent(NamedTuple):
    """What is sent over a mesh axis: ranks of its groups, calls, bytes. inside, between: of nodes, where known."""

    axis: str
    ranks: int
    calls: int
    payload: int
    wire: int
    inside: int | None = None
    between: int | None = None


def axes_sent(communication: Communication) -> list[AxisSent]:
    """What is sent over each mesh axis, the most sent first."""
    found: dict[str, AxisSent] = {}
    for call in communication.collectives:
        row = found.get(call.axis, AxisSent(call.axis, call.group_size, 0, 0, 0))
        found[call.axis] = row._replace(
            calls=row.calls + call.count,
            payload=row.payload + call.payload_bytes,
            wire=row.wire + call.wire_bytes,
        )
    for link in communication.links:
        found[link.axis] = found[link.axis]._replace(inside=link.inside_bytes, between=link.between_bytes)
    return sorted(found.values(), key=lambda row: -row.wire)
