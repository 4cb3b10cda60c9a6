"""Decoding steps as a table: bytes read, and the least time that they take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group

from mla_cost.views import terminal
from mla_cost.views.grid import TextGrid
from mla_cost.views.units import readable


def show(steps: Sequence[Mapping[str, Any]], covers: str) -> None:
    """Print steps of `Step.to_dict`."""
    names = ("form", "weights", "cache", "per token", "read ms", "compute ms", "floor ms", "waits ms", "step ms")
    grid = TextGrid(names, left=("form",))
    for step in steps:
        times = [
            f"{step[name] / 1000:,.2f}" for name in ("read_us", "compute_us", "floor_us", "overhead_us", "step_us")
        ]
        sizes = [readable(int(step[name])) for name in ("weight_bytes", "cache_bytes", "bytes_per_token")]
        grid.add(step["form"], *sizes, *times)
    basis = dict.fromkeys(line for step in steps for line in step["basis"])
    terminal.show(Group(grid, f"estimated: {covers}", *basis))
