"""The attention scope of a sweep: boxes to figures, and each device's verdict on them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import numpy as np

from mla_cost.batch.codes import ILLEGAL, KERNEL_NAMES, MISSING, NONE, UNTRAINED
from mla_cost.language.numbers import where
from mla_cost.pricing.automatic import AUTO
from mla_cost.pricing.usable import status
from mla_cost.results.columns import BLOCK_TIMES, OF_DEVICES, Column
from mla_cost.results.columns import figures as figures_of
from mla_cost.studies.sweep.automatic import Automatic
from mla_cost.studies.sweep.check import Checker
from mla_cost.studies.sweep.columns import Columns
from mla_cost.studies.sweep.grid import Box, Choice, Grid
from mla_cost.studies.sweep.price import BoxFigures, BoxPricer


class AttentionSweep:
    """One block, or a stack of equal blocks, at every point of a grid."""

    compiles: Final = False
    fork_from: Final = 300_000  # points; with fewer a process costs more than it saves

    def __init__(self, grid: Grid, *, timed: bool = False) -> None:
        self.grid = grid
        self.timed = timed
        told = figures_of("attention", timed=timed)
        self.figures = tuple(Column(figure.name, figure.dtype, figure=True) for figure in told)
        self._pricer = BoxPricer(grid, timed=timed)
        self._checker = Checker(grid)
        self._automatic = Automatic(grid)
        self._filled = {"kernel", "value_padding", "status", "reason", *(column.name for column in self.figures)}
        for device in grid.devices:
            self._checker.check_reserve(device, grid.choice(0).settings)

    # ---- the check

    def expected(self, index: int) -> dict[str, Any]:
        """The figures and the status of a point by the int evaluator."""
        return self._checker.expected(index, timed=self.timed)

    def reason(self, index: int, code: int | None) -> str:
        """Why a point is refused, in the words of `plan`."""
        return self._checker.reason(index, code)

    # ---- one box

    def fill(self, choice: Choice, box: Box, views: Columns) -> None:
        """Figures and verdicts of a box. views: a row for each numeric point, a column for each device."""
        if choice.settings.kernel != AUTO:
            every = range(len(self.grid.devices))
            self._fill(choice, box, views, dict.fromkeys(every))
            return
        for own, devices in self._automatic.chosen(choice, box).items():
            whole = {name: np.empty_like(view) for name, view in views.items()}
            self._fill(choice._replace(settings=own.applied(choice.settings)), box, whole, devices)
            for at, mine in devices.items():
                for name, view in views.items():
                    if name in self._filled:
                        places = slice(None) if mine is None else mine
                        view[places, at] = whole[name][places, at]

    def _fill(self, choice: Choice, box: Box, views: Columns, devices: Iterable[int]) -> None:
        """The same under one kernel, for some devices, by place."""
        figures = self._pricer.figures(choice, box)
        wire = figures.columns["forward_wire_bytes"] + figures.columns["backward_wire_bytes"]
        alike = {**figures.columns, "peak_bytes": figures.peak, "wire_bytes": np.maximum(wire, MISSING)}
        padded = self._pricer.padded(choice, box)
        for at in devices:
            views["kernel"][:, at] = KERNEL_NAMES.index(choice.settings.kernel)
            views["value_padding"][:, at] = (figures.reason == 0) & padded
            for name, values in alike.items():
                views[name][:, at] = values
            for figure in BLOCK_TIMES if self.timed else ():
                views[figure.name][:, at] = figures.seconds(at, figure.name)
            self._verdict(choice, box, figures, at, {name: view[:, at] for name, view in views.items()})

    def _verdict(self, choice: Choice, box: Box, figures: BoxFigures, at: int, out: Mapping[str, Any]) -> None:
        """Required against usable. Refused rows are few or all of a box, so they are mended afterwards."""
        allocated = figures.allocated[self._pricer.kinds_of_device[at]]
        device = self.grid.devices[at]
        required = allocated + int(choice.settings.other_memory)
        out["allocated_peak_bytes"][:] = allocated
        out["required_bytes"][:] = required
        reason = figures.reason
        if device is None:
            out["status"][:] = NONE
            for name in OF_DEVICES:
                out[name][:] = MISSING
        else:
            usable, least = self._pricer.usable(choice, box, device)
            headroom = usable - required
            out["usable_bytes"][:], out["headroom_bytes"][:] = usable, headroom
            out["least_headroom_bytes"][:] = least - required
            trained = figures.trained.get(device.arch, True)
            out["status"][:] = status(headroom, usable, trained)
            reason = where(trained, reason, UNTRAINED)
        out["reason"][:] = reason
        refused = figures.reason > 0
        if refused.any():
            out["reason"][refused] = figures.reason[refused]
            out["status"][refused] = ILLEGAL
            times = (figure.name for figure in BLOCK_TIMES) if self.timed else ()
            for name in ("required_bytes", *OF_DEVICES, *times):
                out[name][refused] = MISSING
