"""Kernel `auto` over a box of blocks: what each device trains these head widths with, as a plan chooses it."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from mla_cost.batch.matrices import Ints
from mla_cost.batch.points import distinct
from mla_cost.inputs.settings import PlanSettings
from mla_cost.pricing.automatic import DECIDING_WIDTHS, with_kernel
from mla_cost.studies.sweep.grid import Box, Choice, Grid


class Own(NamedTuple):
    """A kernel in place of `auto`, and the value padding that comes with it."""

    kernel: str
    value_padding: str | None

    def applied(self, settings: PlanSettings) -> PlanSettings:
        """The settings with it."""
        return settings.model_copy(update=self._asdict())


# the points of a box that have a kernel, for each device by place; None for all of them
Points = dict[int, Ints | None]


class Automatic:
    """The kernels of a grid's points. Holds what boxes share."""

    def __init__(self, grid: Grid) -> None:
        self._grid = grid
        self._known: dict[Any, Own] = {}

    def chosen(self, choice: Choice, box: Box) -> dict[Own, Points]:
        """Which points of a box have which kernel, device by device."""
        values = self._grid.values(box)
        widths = [values[symbol] for symbol in DECIDING_WIDTHS]
        found: dict[Own, Points] = {}
        varying = [width.astype(np.int64) for width in widths if isinstance(width, np.ndarray)]
        first, which = distinct(*varying) if varying else (np.zeros(1, np.int64), None)
        each = [
            tuple(int(width[at]) if isinstance(width, np.ndarray) else int(width) for width in widths) for at in first
        ]
        numbers = [self._grid.index(choice, box, int(at)) for at in first]
        for at in range(len(self._grid.devices)):
            own = [self._own(choice, at, widths, number) for widths, number in zip(each, numbers, strict=True)]
            for kernel in (kernels := dict.fromkeys(own)):
                alone = len(kernels) == 1
                mine = None if alone else np.flatnonzero(np.array([other == kernel for other in own])[which])
                found.setdefault(kernel, {})[at] = mine
        return found

    def _own(self, choice: Choice, at: int, widths: tuple[int, ...], index: int) -> Own:
        """That of a device by place, and of all points with these widths, of which one has this number."""
        key = (choice.number, at, widths)
        if key not in self._known:
            form, model, _, settings = self._grid.point_settings(index)
            settings, _ = with_kernel(model, self._grid.devices[at], form, settings)
            self._known[key] = Own(settings.kernel, settings.value_padding)
        return self._known[key]
