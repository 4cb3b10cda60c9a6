"""The model scope of a sweep: each box priced as columns of points, once for each device."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from mla_cost.batch import Composed, price, scalar
from mla_cost.batch.matrices import Ints
from mla_cost.batch.pricer import Timed
from mla_cost.batch.verdicts import check_reserve
from mla_cost.results.columns import Column
from mla_cost.results.columns import figures as figures_of
from mla_cost.studies.sweep.axes import COUNTS
from mla_cost.studies.sweep.columns import Columns
from mla_cost.studies.sweep.grid import Box, Choice, ModelGrid


class Stages:
    """The worst stage of the whole model at every point of a grid."""

    compiles: Final = True
    fork_from: Final = 50_000  # points; every process compiles for itself

    def __init__(self, grid: ModelGrid, *, timed: bool = False) -> None:
        self.grid = grid
        self.timed = timed
        told = figures_of("model", timed=timed)
        self.figures = tuple(Column(figure.name, figure.dtype, figure=True) for figure in told)
        self._reported: dict[tuple[int, int], Composed] = {}
        for device in grid.devices:
            if device is not None:
                check_reserve(grid.model(grid.choice(0)), device, grid.choice(0).settings)

    # ---- the check

    def expected(self, index: int) -> dict[str, Any]:
        """The figures and the status of a point by `plan`'s own functions."""
        form, model, device, settings = self.grid.point_settings(index)
        return scalar.row(model, device, form, settings, timed=self.timed)

    def reason(self, index: int, code: int | None) -> str:
        """Why a point is refused, in the words of `plan`."""
        if code == 0:
            return ""
        form, model, device, settings = self.grid.point_settings(index)
        found = price(model, device, form, settings, {"seq_len": [settings.seq_len]})
        return found.reason_of(0)

    # ---- one box

    def fill(self, choice: Choice, box: Box, views: Columns) -> None:
        """Figures and verdicts of a box. views: a row for each numeric point, a column for each device."""
        model, columns = self.grid.model(choice), self._columns(box)
        for at, device in enumerate(self.grid.devices):
            timed: Timed = "all" if self.timed else "none"
            found = price(model, device, choice.form, choice.settings, columns, timed)
            self._put(found, {name: view[:, at] for name, view in views.items()})

    def _columns(self, box: Box) -> dict[str, Ints]:
        """The numbers of a box, an array each."""
        found = {}
        for at, axis in enumerate(self.grid.numbers):
            if axis.name in COUNTS["model"]:
                values = self.grid.spread(f"points {axis.name}", np.asarray(axis.values, np.int64), at, box)
                found[axis.name] = np.broadcast_to(values, box.size)
        return found or {"seq_len": np.full(box.size, self.grid.settings.seq_len, np.int64)}

    @staticmethod
    def _put(found: Composed, out: Columns) -> None:
        for name, column in found.columns.items():
            out[name][:] = column
        out["status"][:], out["reason"][:] = found.status, found.reason
        out["kernel"][:] = found.kernel
        out["value_padding"][:] = found.padding
