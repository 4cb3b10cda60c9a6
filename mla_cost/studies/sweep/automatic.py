"""Kernel `auto` over a box of blocks: what each device trains these head widths with, as a plan chooses it."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from mla_cost.batch.matrices import Ints
from mla_cost.inputs.config import ModelConfig
from mla_cost.inputs.settings import PlanSettings
from mla_cost.pricing.automatic import DECIDING_WIDTHS, with_kernel
from mla_cost.studies.sweep.grid import WIDTHS, Box, Choice, Grid


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
        if not any(isinstance(width, np.ndarray) for width in widths):
            for at in range(len(self._grid.devices)):
                found.setdefault(self._own(choice, at, tuple(map(int, widths))), {})[at] = None
            return found
        every = np.stack([np.broadcast_to(width, box.size) for width in widths])
        combinations, which = np.unique(every, axis=1, return_inverse=True)
        for at in range(len(self._grid.devices)):
            own = [self._own(choice, at, tuple(map(int, each))) for each in combinations.T]
            for kernel in dict.fromkeys(own):
                mine = np.array([other == kernel for other in own])[which.ravel()]
                found.setdefault(kernel, {})[at] = np.flatnonzero(mine)
        return found

    def _own(self, choice: Choice, at: int, widths: tuple[int, ...]) -> Own:
        key = (choice.number, at, widths)
        if key not in self._known:
            settings, _ = with_kernel(self._model(widths), self._grid.devices[at], choice.form, choice.settings)
            self._known[key] = Own(settings.kernel, settings.value_padding)
        return self._known[key]

    def _model(self, widths: tuple[int, ...]) -> ModelConfig:
        model = self._grid.models[0]
        taken = {WIDTHS[symbol]: width for symbol, width in zip(DECIDING_WIDTHS, widths, strict=True)}
        return model.model_copy(update={"dims": model.dims.model_copy(update=taken)})
