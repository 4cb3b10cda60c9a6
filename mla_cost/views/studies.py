"""Pictures of levers, communication, a pipeline's schedule, a search and published figures (matplotlib, an extra)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from math import log
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

from mla_cost.results import Lever, Result
from mla_cost.views.drawing import save
from mla_cost.views.evidence import USES
from mla_cost.views.memory import COLOURS, GIB

FITTING: Final = {"fits": ("#009E73", ""), "tight": ("#F0E442", "..."), "oom": ("#D55E00", "//")}
MOST_ROWS: Final = 24
MOST_NAMED: Final = 8
MOST_PASSES: Final = 900  # that carry their number


class DrawnPass(Protocol):
    """A pass of a stage: when it runs, and of which micro-batch and chunk."""

    @property
    def stage(self) -> int: ...
    @property
    def slot(self) -> int: ...
    @property
    def kind(self) -> str: ...
    @property
    def chunk(self) -> int: ...
    @property
    def micro_batch(self) -> int: ...


class LayoutPoint(NamedTuple):
    """A layout of a search. best: whether none beats it in everything that the search looks at."""

    name: str
    required_bytes: int
    sent_bytes: int
    best: bool


class PublishedPair(NamedTuple):
    """A published figure and the prediction, in one unit."""

    name: str
    unit: str
    published: float
    predicted: float
    matches: bool

    @property
    def ratio(self) -> float:
        """Predicted over published."""
        return self.predicted / self.published


def _figure(width: float, height: float, title: str) -> tuple[Any, Any]:
    from textwrap import fill

    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained", dpi=150)
    figure.suptitle(fill(title, int(width * 11)), fontsize=11)
    return figure, figure.subplots()


def _bare(axes: Any, grid: str = "x") -> None:
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.set_axisbelow(True)
    if grid:
        axes.grid(axis=grid, color="#DDDDDD", linewidth=0.6)
    axes.tick_params(labelsize=8)


# ---- levers


def draw_levers(path: Path, title: str, result: Result) -> None:
    """Write a tornado: what each change frees or takes, the largest first, coloured by whether the plan then fits."""
    levers = _largest(result.verdict.levers if result.verdict is not None else ())
    figure, axes = _figure(10, 1.4 + 0.3 * max(len(levers), 3), title)
    amounts = [(lever.required_delta_bytes or 0) / GIB for lever in levers]
    for at, (lever, amount) in enumerate(zip(levers, amounts, strict=True)):
        colour, hatch = FITTING.get(lever.status, ("#BBBBBB", "xx"))
        axes.barh(at, amount, color=colour, hatch=hatch, edgecolor="#333333", linewidth=0.4)
        axes.annotate(
            f"{amount:+,.2f}", (amount, at), (4 if amount >= 0 else -4, 0), textcoords="offset points", va="center",
            ha="left" if amount >= 0 else "right", fontsize=8, zorder=4,
            bbox={"facecolor": "#FFFFFF", "edgecolor": "none", "pad": 0.8},
        )  # fmt: skip
    axes.set_yticks(range(len(levers)), [lever.change for lever in levers])
    axes.invert_yaxis()
    axes.axvline(0, color="#000000", linewidth=0.8)
    axes.margins(x=0.2)
    axes.set_xlabel("GiB that the plan then needs more, or less, on one rank", fontsize=9)
    _bare(axes)
    _verdicts(axes, result, levers)
    save(figure, path)


def _largest(levers: Sequence[Lever]) -> list[Lever]:
    found = [lever for lever in levers if lever.required_delta_bytes]
    return sorted(found, key=lambda lever: -abs(lever.required_delta_bytes or 0))[:MOST_ROWS]


def _verdicts(axes: Any, result: Result, levers: Iterable[Lever]) -> None:
    """What the colours mean, and how much has to go where the plan does not fit."""
    from matplotlib.patches import Patch

    seen = {lever.status for lever in levers}
    handles = [
        Patch(facecolor=colour, hatch=hatch, edgecolor="#333333", linewidth=0.4, label=f"then {status}")
        for status, (colour, hatch) in FITTING.items()
        if status in seen
    ]
    short = -(result.verdict.headroom_bytes or 0) if result.verdict is not None else 0
    if short > 0:
        handles.append(
            axes.axvline(-short / GIB, color="#000000", linestyle="--", linewidth=1, label=f"{short / GIB:,.2f} short")
        )
    axes.figure.legend(handles=handles, fontsize=8, frameon=False, loc="outside lower center", ncols=4)


# ---- communication


def draw_communication(path: Path, title: str, results: Sequence[Result]) -> None:
    """Write what a rank sends over each mesh axis, a group of bars for each result, by collective."""
    rows = [(result, axis) for result in results for axis in _axes(result)]
    kinds = list(dict.fromkeys(call.kind for result in results for call in result.communication.collectives))
    colours = dict(zip(kinds, COLOURS, strict=False))
    figure, axes = _figure(10, 1.4 + 0.32 * max(len(rows), 2), title)
    for at, (result, axis) in enumerate(rows):
        left = 0.0
        for kind in kinds:
            calls = result.communication.collectives
            amount = sum(call.wire_bytes for call in calls if (call.axis, call.kind) == (axis, kind)) / GIB
            if amount:
                axes.barh(at, amount, left=left, color=colours[kind], label=kind, edgecolor="#FFFFFF", linewidth=0.5)
            left += amount
        axes.annotate(_amount_sent(result, axis, left), (left, at), (4, 0), textcoords="offset points",
                      va="center", fontsize=8)  # fmt: skip
    axes.set_yticks(range(len(rows)), [f"{_name(result)}: {axis}" for result, axis in rows])
    axes.invert_yaxis()
    far = any(link.between_bytes for result in results for link in result.communication.links)
    axes.margins(x=0.22 if far else 0.12)
    axes.set_xlabel("GiB that one rank sends, on the wire", fontsize=9)
    _bare(axes)
    named = dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
    words = [name.replace("_", "-") for name in named]
    figure.legend(named.values(), words, fontsize=8, frameon=False, loc="outside lower center", ncols=len(words) or 1)
    save(figure, path)


def _name(result: Result) -> str:
    return f"{result.form} on {result.device}" if result.device else result.form


def _amount_sent(result: Result, axis: str, whole: float) -> str:
    """GiB, and what of it leaves the node."""
    between = sum(link.between_bytes for link in result.communication.links if link.axis == axis) / GIB
    amounts = [f"{each:,.3f}" if each < 1 else f"{each:,.2f}" for each in (whole, between)]
    return f"{amounts[0]}, {amounts[1]} between nodes" if between else amounts[0]


def _axes(result: Result) -> list[str]:
    return list(dict.fromkeys(call.axis for call in result.communication.collectives))


# ---- a pipeline's schedule


def draw_schedule(path: Path, title: str, passes: Sequence[DrawnPass]) -> None:
    """Write a row per stage: forward passes and backward ones by colour, each with its micro-batch where there is room.

    Every pass takes a slot; what a stage waits stays white. Chunks are told apart by how dark they are.
    """
    stages, slots = 1 + max(it.stage for it in passes), 1 + max(it.slot for it in passes)
    chunks = 1 + max(it.chunk for it in passes)
    figure, axes = _figure(10, 1.3 + 0.34 * stages, title)
    looks = {"forward": "#0072B2", "backward": "#E69F00"}
    for kind, colour in looks.items():
        for chunk in range(chunks):
            mine = [it for it in passes if (it.kind, it.chunk) == (kind, chunk)]
            label = kind if chunks == 1 else f"{kind}, chunk {chunk}"
            axes.barh(
                [it.stage for it in mine], 1, left=[it.slot for it in mine], height=0.9, color=colour, label=label,
                alpha=1 - 0.55 * chunk / max(chunks - 1, 1), edgecolor="#FFFFFF", linewidth=0.5,
            )  # fmt: skip
    if len(passes) <= MOST_PASSES and slots <= 80:
        for it in passes:
            colour = "#FFFFFF" if it.kind == "forward" and it.chunk == 0 else "#000000"
            size = min(8, 480 / slots)
            axes.text(it.slot + 0.5, it.stage, it.micro_batch, ha="center", va="center", fontsize=size, color=colour)
    axes.set_xlim(0, slots)
    axes.set_yticks(range(stages), [f"stage {stage}" for stage in range(stages)])
    axes.invert_yaxis()
    axes.set_xlabel("slots, were all passes alike; numbers are micro-batches", fontsize=9)
    _bare(axes, grid="")
    figure.legend(loc="outside lower center", ncols=min(2 * chunks, 6), fontsize=8, frameon=False)
    save(figure, path)


# ---- a search


def draw_search(path: Path, title: str, points: Sequence[LayoutPoint], usable_bytes: int) -> None:
    """Write the layouts of a search, needs against what is sent; those that none beats in everything are joined."""
    figure, axes = _figure(10, 5.4, title)
    rest, best = [it for it in points if not it.best], sorted(it for it in points if it.best)
    for found, look in (
        (rest, ("o", "#56B4E9", 26, "fits")),
        (best, ("D", "#D55E00", 44, "none beats it")),
    ):
        marker, colour, size, label = look
        places = ([it.required_bytes / GIB for it in found], [it.sent_bytes / GIB for it in found])
        axes.scatter(*places, marker=marker, c=colour, s=size, edgecolors="#333333", linewidths=0.5, label=label)
    for it in _apart(best):
        place = (it.required_bytes / GIB, it.sent_bytes / GIB)
        back = {"facecolor": "#FFFFFF", "edgecolor": "none", "alpha": 0.8, "pad": 0.4}
        axes.annotate(it.name, place, (6, 4), textcoords="offset points", fontsize=7, bbox=back)
    axes.axvline(usable_bytes / GIB, color="#000000", linestyle="--", linewidth=1, label="usable")
    axes.set_xlabel("GiB needed on one rank of the worst stage", fontsize=9)
    axes.set_ylabel("GiB sent by the stage that sends most, one optimizer step", fontsize=9)
    axes.set_ylim(bottom=0)
    _bare(axes, grid="both")
    axes.legend(fontsize=8, frameon=False)
    save(figure, path)


def _apart(best: Sequence[LayoutPoint]) -> list[LayoutPoint]:
    """Some that no other one beats in both, far enough from each other to carry a name."""
    most, found = max((it.sent_bytes for it in best), default=0), list[LayoutPoint]()
    for it in sorted(best, key=lambda point: (point.required_bytes, point.sent_bytes)):
        if not found or it.sent_bytes <= found[-1].sent_bytes - most / 16:
            found.append(it)
    return found


# ---- published figures


def draw_published(path: Path, title: str, pairs: Sequence[PublishedPair]) -> None:
    """Write predicted over published against what was published: on the line both agree; the furthest off are named."""
    figure, axes = _figure(10, 5.4, title)
    for at, unit in enumerate(dict.fromkeys(it.unit for it in pairs)):
        for matches in (True, False):
            found = [it for it in pairs if (it.unit, it.matches) == (unit, matches)]
            axes.scatter(
                [it.published for it in found], [it.ratio for it in found], s=34, marker="o" if matches else "X",
                c=COLOURS[at % len(COLOURS)], edgecolors="#333333", linewidths=0.5,
                label=f"{unit}, {'match' if matches else 'differ'}" if found else None,
            )  # fmt: skip
    for it in sorted(pairs, key=lambda pair: abs(log(pair.ratio)))[-MOST_NAMED:]:
        axes.annotate(it.name, (it.published, it.ratio), (6, 3), textcoords="offset points", fontsize=6)
    axes.axhline(1, color="#000000", linewidth=0.8)
    _logarithmic(axes, "published, in its own unit", "predicted / published")
    _bare(axes, grid="both")
    figure.legend(fontsize=8, frameon=False, loc="outside lower center", ncols=6)
    save(figure, path)


def _logarithmic(axes: Any, along: str, up: str) -> None:
    """Both scales, and what they are of."""
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel(along, fontsize=9)
    axes.set_ylabel(up, fontsize=9)


class TimePoint(NamedTuple):
    """A published time and what is predicted for it, in one unit. group: whose device; use: as rows have it."""

    name: str
    group: str
    use: str
    published: float
    predicted: float


MARKERS: Final = {"gate": "o", "ratio": "D", "": "^"}  # by what a row is for
BARS: Final = (0.15, 0.25)  # of the median row to meet first, and of the worst


def draw_times(path: Path, title: str, points: Sequence[TimePoint]) -> None:
    """Write what is predicted against what was published, a point a row; within the bands it is near enough."""
    figure, axes = _figure(10, 6.4, title)
    groups = list(dict.fromkeys(it.group for it in points))
    ends = [0.7 * min(it.published for it in points), 1.4 * max(it.published for it in points)]
    for bar, shade in zip(BARS, ("#DDDDDD", "#EEEEEE"), strict=True):
        low, high = ([end * (1 + sign * bar) for end in ends] for sign in (-1, 1))
        axes.fill_between(ends, low, high, color=shade, zorder=-bar, label=f"within {bar:.0%}")
    axes.plot(ends, ends, color="#000000", linewidth=0.8)
    for group, (use, marker) in product(groups, MARKERS.items()):
        found = [it for it in points if (it.group, it.use) == (group, use)]
        axes.scatter(
            [it.published for it in found], [it.predicted for it in found], s=42, marker=marker,
            c=COLOURS[groups.index(group) % len(COLOURS)], edgecolors="#333333", linewidths=0.5,
            label=f"{group}, {USES[use]}" if found else None,
        )  # fmt: skip
    for it in sorted(points, key=lambda point: abs(log(point.predicted / point.published)))[-MOST_NAMED:]:
        axes.annotate(it.name, (it.published, it.predicted), (7, -3), textcoords="offset points", fontsize=6)
    _logarithmic(axes, "published: ms, tokens a second of a device, or a ratio", "predicted, in the same unit")
    _bare(axes, grid="both")
    figure.legend(fontsize=7, frameon=False, loc="outside lower center", ncols=4)
    save(figure, path)


def time_points_of(rows: Iterable[Mapping[str, Any]]) -> list[TimePoint]:
    """The rows of `evidence` that are times and predicted."""
    return [
        TimePoint(row["id"], row["device"], row["use"], row["published"], row["predicted"])
        for row in rows
        if row["device"] is not None and row["predicted"]
    ]


def pairs_of(rows: Iterable[Mapping[str, Any]]) -> list[PublishedPair]:
    """The rows of `evidence` that have two numbers above zero. What is published as a bound is no point to meet."""
    return [
        PublishedPair(row["id"], row["unit"], row["published"], row["predicted"], row["status"] == "matches")
        for row in rows
        if all(isinstance(row[name], int | float) and row[name] > 0 for name in ("published", "predicted"))
        if not isinstance(row["published"], bool) and not row["bound"]
    ]


def points_of(found: Mapping[str, Any]) -> list[LayoutPoint]:
    """The layouts that a search tells, and its Pareto set, each once."""
    best = [_point(row, best=True) for row in found["pareto"]]
    known = {it[:3] for it in best}
    return [*best, *(point for row in found["results"] if (point := _point(row, best=False))[:3] not in known)]


def _point(row: Mapping[str, Any], *, best: bool) -> LayoutPoint:
    degrees = " ".join(f"{axis}{row[axis]}" for axis in ("tp", "sp", "pp", "ep") if row[axis] > 1)
    return LayoutPoint(f"{row['form']} {degrees} {row['remat']}", row["required_bytes"], row["sent_bytes"], best)
