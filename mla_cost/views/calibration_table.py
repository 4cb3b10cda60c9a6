"""A calibration as a table: factors of the terms, what the steps leave open, and how well they are met."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import Group

from mla_cost.views import terminal
from mla_cost.views.grid import TextGrid


def show(answer: Mapping[str, Any]) -> None:
    """Print `Calibration.to_dict`."""
    grid = TextGrid(("term", "of a step", "takes", "give or take"), left=("term",))
    for term in answer["terms"]:
        error = "-" if term["error"] is None else f"{term['error']:.2f}"
        grid.add(term["name"], f"{term['share']:.0%}", f"{term['factor']:.2f} x", error)
    terminal.show(Group(f"{answer['device']}: {len(answer['rows'])} measured steps", "", grid, "", *_words(answer)))


def _words(answer: Mapping[str, Any]) -> Iterator[str]:
    for when in ("before", "after"):
        off = answer[when]
        yield f"{when}: median error {off['median']:.1%}, worst {off['worst']:.1%}"
    for names in answer["not_told_apart"]:
        if len(names) > 1:
            yield f"not told apart: {', '.join(names)}; steps in which their parts differ would tell"
        else:
            yield f"hardly decided: {names[0]}"
    if answer["hardly_there"]:
        yield f"hardly in these steps, and left as they were: {', '.join(answer['hardly_there'])}"
    if answer["at_their_peak"]:
        yield f"would be above their peak, and stand at it: {', '.join(answer['at_their_peak'])}"
