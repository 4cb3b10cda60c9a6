"""The columns of a sweep: what varies as given, names, figures, verdict."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mla_cost.batch.codes import ILLEGAL, KERNEL_NAMES, MISSING, NONE, PADDINGS, REASONS, STATUSES
from mla_cost.declared.schemes import SCHEMES
from mla_cost.results.columns import NAMES, OF_DEVICES, TIMES, Column
from mla_cost.studies.sweep.axes import SweepAxis
from mla_cost.studies.sweep.grid import Grid

Columns = dict[str, NDArray[Any]]


def table(grid: Grid, figures: Sequence[Column]) -> Iterator[Column]:
    """Every column in order; `figures` are the numbers that a scope prices."""
    for axis in grid.axes:
        if axis.name not in NAMES:
            yield _axis_column(grid, axis)
    if grid.own_sp:
        yield Column("sp", "int64")
    forms = next(axis.values for axis in grid.choices if axis.name == "form")
    yield Column("form", "int16", tuple(forms))
    yield Column("scheme", "int16", tuple(SCHEMES))
    yield Column("kernel", "int16", KERNEL_NAMES)
    yield Column("value_padding", "int8", PADDINGS)
    yield Column("device", "int16", tuple(device.name if device else "none" for device in grid.devices))
    yield from figures
    yield Column("status", "int8", STATUSES)
    yield Column("reason", "int8", REASONS)


def _axis_column(grid: Grid, axis: SweepAxis) -> Column:
    if axis.name == "model":
        names = tuple(model.name for model in grid.models)
        return Column("model", "int16", names if len(set(names)) == len(names) else tuple(map(str, axis.values)))
    if _is_number(axis):
        return Column(axis.name, "int64")
    return Column(axis.name, "int16", tuple(map(_text, axis.values)))


def _is_number(axis: SweepAxis) -> bool:
    """Whether a column of ints can hold it; a model without a query latent has one of width 0."""
    if isinstance(axis.values, range):
        return True
    return all(type(value) is int or (value is None and axis.name == "dims.q_lora_rank") for value in axis.values)


def _text(value: Any) -> str:
    return {None: "null", True: "true", False: "false"}.get(value, str(value))


def stored(axis: SweepAxis) -> NDArray[Any]:
    """The values of an axis as its column holds them."""
    if isinstance(axis.values, range):
        return np.arange(axis.values.start, axis.values.stop, axis.values.step, dtype=np.int64)
    if _is_number(axis):
        return np.array([0 if value is None else value for value in axis.values], np.int64)
    return np.arange(len(axis.values), dtype=np.int16)


def without(column: Column, found: Columns) -> NDArray[np.bool_] | None:
    """Where a column has no number; None: nowhere."""
    if not column.figure:
        return None
    if column.name in TIMES:
        untold: NDArray[np.bool_] = found[column.name] == MISSING
        return untold
    missing: NDArray[np.bool_] = found["status"] == ILLEGAL
    if column.name in OF_DEVICES:
        missing |= found["status"] == NONE
    return missing
