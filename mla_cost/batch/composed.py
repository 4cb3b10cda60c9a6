"""What `price` gives: one array per figure, refusals in words on request, and a check against `plan` itself."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from mla_cost.batch.codes import MISSING
from mla_cost.pricing.step_traffic import Most
from mla_cost.results import columns

AXES: Final = tuple(columns.AXES.values())
SAMPLE: Final = 8
Reported = Callable[[int, int], str]  # from a point and its code to a sentence
Expected = Callable[[int], Mapping[str, Any]]  # from a point to its row by `plan`


class Composed:
    """Many points of the model scope, each for one rank of the worst stage; MISSING where a row is illegal.

    columns: an array for each of `figures`, whose names say what they hold; bytes are int64, flops float64, exact below
    2^53, and figures of time float64. Payload, wire and flops are those of one optimizer step; by phase without the
    step's own collectives. status, reason: places in `mla_cost.batch.codes`. kernel: places in `kernels`. padding: of
    V, places in `PADDINGS`. most: of all stages, and not the worst alone.
    """

    def __init__(
        self, size: int, kernels: tuple[str, ...], reported: Reported, expected: Expected, *, timed: bool = False
    ) -> None:
        self.figures = columns.figures("model", timed=timed)
        self.columns: dict[str, NDArray[Any]] = {
            figure.name: np.full(size, MISSING, figure.dtype) for figure in self.figures
        }
        by_axis: dict[str, Any] = {axis: np.full(size, MISSING, np.int64) for axis in AXES}
        self.most = Most(np.full(size, MISSING, np.int64), by_axis, np.full(size, MISSING, np.float64))
        self.status: NDArray[np.int8] = np.zeros(size, np.int8)
        self.reason: NDArray[np.int8] = np.zeros(size, np.int8)
        self.kernel: NDArray[np.int16] = np.zeros(size, np.int16)
        self.kernels = kernels
        self.padding: NDArray[np.int8] = np.zeros(size, np.int8)
        self._reported = reported
        self._expected = expected

    def __getitem__(self, name: str) -> NDArray[Any]:
        """The column of a figure."""
        return self.columns[name]

    def __len__(self) -> int:
        return len(self.status)

    def reason_of(self, index: int) -> str:
        """Why a point is refused, as `plan` says it; empty where it is not."""
        return self._reported(index, int(self.reason[index])) if self.reason[index] else ""

    def row(self, index: int) -> dict[str, Any]:
        """Every number of a point by its column."""
        found = {name: column[index].item() for name, column in self.columns.items()}
        return {**found, "status": int(self.status[index])}

    def check(self, count: int = SAMPLE) -> None:
        """Price some points, drawn at random, by `plan` itself and compare all numbers.

        Raises:
            ArithmeticError: they differ, which no input may cause.

        """
        draw = random.Random()  # noqa: S311  (a check, no secret)
        for index in (draw.randrange(len(self)) for _ in range(count if len(self) else 0)):
            require_equal(index, self.row(index), self._expected(index))


def require_equal(index: int, found: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    """Nothing, where two rows of a point agree.

    Raises:
        ArithmeticError: they differ.

    """
    step = abs(found.get("seconds", 0.0))
    reported = {
        name: (found[name], value)
        for name, value in wanted.items()
        if not (_as_long(found[name], value, step) if name in columns.TIMES else _equal(found[name], value))
    }
    if reported:
        raise ArithmeticError(f"point {index}: (here, plan) are {reported}")


def _as_long(found: Any, wanted: Any, step: Any) -> bool:
    """Whether times agree: sums of as many numbers in another order. What waits is a difference of such sums."""
    return bool(abs(found - wanted) <= 1e-9 * abs(wanted) + 1e-12 * step)


def _equal(found: Any, wanted: Any) -> bool:
    """Whole numbers to the last digit; flops, which are sums in double precision here, to its rounding above 2^53."""
    if isinstance(found, float) and abs(wanted) >= 1 << 53:
        return bool(abs(found - wanted) <= abs(wanted) * 2.0**-48)
    return bool(found == wanted)
