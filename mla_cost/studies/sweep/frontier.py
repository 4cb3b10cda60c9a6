"""What a picture of a sweep shows: verdicts over sequence and ranks, for each form and device."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from mla_cost.batch.codes import ILLEGAL, STATUSES
from mla_cost.errors import InputError
from mla_cost.studies.sweep.result import Sweep

MOST_PANELS: Final = 24
MOST_SIDE: Final = 512


def frontier(sweep: Sweep) -> tuple[list[int], list[int], list[tuple[str, str, Any, Any]]]:
    """seq_len and sp of the sweep, then for each form and device its statuses and required GiB, [sp][seq_len].

    Raises:
        InputError: a sweep that is no picture of seq_len and sp.

    """
    if sweep.grid.joint:
        raise InputError("a picture has axes of their own", field=f"over {sweep.grid.joint[0].name}")
    axes = {axis.name: list(axis.values) for axis in sweep.grid.axes}
    for name in ("seq_len", "sp"):
        if name not in axes:
            raise InputError("a picture shows seq_len against sp; go over both", field=f"over {name}")
    for name, values in axes.items():
        if name not in {"seq_len", "sp", "form", "device"} and len(values) > 1:
            raise InputError("a picture has no room for this axis; give it one value", field=f"over {name}")
    if max(len(axes["seq_len"]), len(axes["sp"])) > MOST_SIDE:
        raise InputError("too many values for a picture", field="over", allowed=f"at most {MOST_SIDE} on an axis")
    forms, devices = sweep.names["form"], sweep.names["device"]
    if len(forms) * len(devices) > MOST_PANELS:
        raise InputError("too many panels for a picture", field="--plot", allowed=f"at most {MOST_PANELS}")
    found = sweep.to_numpy()
    panels = [
        (form, device, *_panel(found, axes, at, where))
        for where, device in enumerate(devices)
        for at, form in enumerate(forms)
    ]
    return axes["seq_len"], axes["sp"], panels


def kernels_of(sweep: Sweep) -> list[str]:
    """The kernels of the rows, in the order of the catalogue: `auto` can be another one for each form."""
    return [sweep.names["kernel"][code] for code in np.unique(sweep.to_numpy()["kernel"])]


def _panel(found: dict[str, Any], axes: dict[str, list[Any]], form: int, device: int) -> tuple[Any, Any]:
    mine = np.flatnonzero((found["form"] == form) & (found["device"] == device))
    place = {name: {value: at for at, value in enumerate(axes[name])} for name in ("seq_len", "sp")}
    status = [["none"] * len(axes["seq_len"]) for _ in axes["sp"]]
    gib: list[list[float | None]] = [[None] * len(axes["seq_len"]) for _ in axes["sp"]]
    for row in mine.tolist():
        x, y = place["seq_len"][int(found["seq_len"][row])], place["sp"][int(found["sp"][row])]
        status[y][x] = STATUSES[found["status"][row]]
        if found["status"][row] != ILLEGAL:
            gib[y][x] = float(found["required_bytes"][row]) / 2**30
    return status, gib
