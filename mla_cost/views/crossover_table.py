"""Where one stops beating another: in words, as bars, and as a picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from rich.console import Group

from mla_cost.views import terminal
from mla_cost.views.drawing import save
from mla_cost.views.grid import TextGrid
from mla_cost.views.units import sent

_MOST: Final = 24  # points that are told
_COLOURS: Final = ("#0072B2", "#D55E00")
_WORDS: Final = {
    "forward": "bytes sent in forward",
    "backward": "bytes sent in backward",
    "sent": "bytes sent",
    "saved": "bytes kept for backward",
    "peak": "bytes at the peak",
}


def show(answer: Mapping[str, Any]) -> None:
    """Print `Crossover.to_dict`."""
    first, second = answer["sides"]
    points = [point for point in answer["points"] if None not in {point["first"], point["second"]}]
    names = [name for name in points[0] if name not in {"first", "second"}]
    grid = TextGrid((*names, first, second, "less"), left=("less",))
    for point in points[:_MOST]:
        amounts = point["first"], point["second"]
        less = "alike" if amounts[0] == amounts[1] else (first, second)[amounts[1] < amounts[0]]
        grid.add(*(f"{point[name]:,}" if isinstance(point[name], int) else str(point[name]) for name in names),
                 *map(sent, amounts), less)  # fmt: skip
    terminal.show(Group(f"{_WORDS[answer['quantity']]}, one block, one rank, GiB", grid, *_lines(answer, len(points))))


def _lines(answer: Mapping[str, Any], count: int) -> list[str]:
    first, second = answer["sides"]
    told = [f"{count - _MOST} points more: --format json"] * (count > _MOST)
    for turn in answer["turns"]:
        where = ", ".join(f"{name} {value:,}" for name, value in turn["at"].items())
        along = turn["along"]
        told.append(
            f"{f'at {where}: ' if where else ''}{turn['before']} has less up to {along} {turn['last']}, "
            f"from {along} {turn['first']} on {turn['after']}"
        )
    told += ["no turn on this grid"] * (not answer["turns"])
    solved = f", that is {answer['root']}" if answer["root"] else ""
    told.append(f"{first} has less than {second} where {answer['inequality']}{solved} ({answer['holds']})")
    return told


def draw(path: Path, answer: Mapping[str, Any]) -> None:
    """Write both curves along the first axis, for the first values of the others, as the file's name says."""
    from matplotlib.figure import Figure

    points = [point for point in answer["points"] if None not in {point["first"], point["second"]}]
    along, *others = (name for name in points[0] if name not in {"first", "second"})
    row = [point for point in points if all(point[name] == points[0][name] for name in others)]
    row = [point for point in row if point["first"] and point["second"]] or row  # on a scale without zero
    figure = Figure(figsize=(7, 4.2), layout="constrained", dpi=150)
    axes = figure.subplots()
    for side, name, colour, mark in zip(("first", "second"), answer["sides"], _COLOURS, "os", strict=True):
        axes.plot(_values(row, along), _values(row, side), color=colour, marker=mark, label=name)
    for turn in answer["turns"]:
        if all(turn["at"][name] == points[0][name] for name in others):
            axes.axvspan(turn["last"], turn["first"], color="#E4E4E4", label=f"{turn['after']} from {turn['first']} on")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xlabel(along)
    axes.set_ylabel(_WORDS[answer["quantity"]])
    axes.set_xticks(_values(row, along), [f"{value:,}" for value in _values(row, along)])
    axes.minorticks_off()
    axes.legend()
    axes.set_title(f"{answer['sides'][0]} has less where {answer['inequality']}", fontsize=10)
    save(figure, path)


def _values(row: Sequence[Mapping[str, Any]], name: str) -> list[Any]:
    return [point[name] for point in row]
