"""What `price` gives: one array per figure, refusals in words on request, and a check against `plan` itself."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from mla_cost.batch.codes import MISSING
from mla_cost.batch.matrices import Floats, Ints

BYTES: Final = (
    *("required_bytes", "usable_bytes", "headroom_bytes", "peak_bytes", "state_bytes", "weight_bytes"),
    *("gradient_bytes", "optimizer_bytes", "standing_bytes", "kept_bytes", "working_bytes", "wire_bytes"),
    *("saved_bytes", "active_bytes"),
    *("forward_payload_bytes", "backward_payload_bytes", "forward_wire_bytes", "backward_wire_bytes"),
)
AXES: Final = ("tp", "sp", "pp", "ep", "etp", "dp x sp", "expert_dp")
SAMPLE: Final = 8
Told = Callable[[int, int], str]  # from a point and its code to a sentence
Expected = Callable[[int], Mapping[str, Any]]  # from a point to its row by `plan`


class Composed:
    """Many points of the model scope, each for one rank of the worst stage; MISSING where a row is illegal.

    Bytes are int64. required: the allocated peak and other memory; peak = state + standing + kept + working. state:
    weights, gradients, optimizer, buffers. standing: what a profile holds for the whole run. saved: what one
    micro-batch keeps for backward. kept: of the micro-batches in flight but one; working: of that one at its peak;
    active: both. Where the optimizer step makes more, working is that and kept is 0, but active stays. Payload, wire
    and flops are those of one optimizer step; by phase without the step's own collectives. flops_model, flops_executed:
    float64, exact below 2^53. status, reason: places in `mla_cost.batch.codes`. worst_stage: from 0. kernel: places in
    `kernels`. busiest_wire_bytes, busiest_by_axis: of the stage that sends most; busiest_flops: of that which runs
    most; MISSING where not asked for.
    """

    required_bytes: Ints
    usable_bytes: Ints
    headroom_bytes: Ints
    peak_bytes: Ints
    state_bytes: Ints
    weight_bytes: Ints
    gradient_bytes: Ints
    optimizer_bytes: Ints
    standing_bytes: Ints
    saved_bytes: Ints
    active_bytes: Ints
    kept_bytes: Ints
    working_bytes: Ints
    wire_bytes: Ints
    forward_payload_bytes: Ints
    backward_payload_bytes: Ints
    forward_wire_bytes: Ints
    backward_wire_bytes: Ints

    def __init__(self, size: int, kernels: tuple[str, ...], told: Told, expected: Expected) -> None:
        for name in BYTES:
            setattr(self, name, np.full(size, MISSING, np.int64))
        self.wire_by_axis: dict[str, Ints] = {axis: np.full(size, MISSING, np.int64) for axis in AXES}
        self.flops_model: Floats = np.full(size, MISSING, np.float64)
        self.flops_executed: Floats = np.full(size, MISSING, np.float64)
        self.busiest_wire_bytes: Ints = np.full(size, MISSING, np.int64)
        self.busiest_by_axis: dict[str, Ints] = {axis: np.full(size, MISSING, np.int64) for axis in AXES}
        self.busiest_flops: Floats = np.full(size, MISSING, np.float64)
        self.worst_stage: Ints = np.full(size, MISSING, np.int64)
        self.status: NDArray[np.int8] = np.zeros(size, np.int8)
        self.reason: NDArray[np.int8] = np.zeros(size, np.int8)
        self.kernel: NDArray[np.int16] = np.zeros(size, np.int16)
        self.kernels = kernels
        self._told = told
        self._expected = expected

    def __len__(self) -> int:
        return len(self.status)

    def reason_of(self, index: int) -> str:
        """Why a point is refused, as `plan` says it; empty where it is not."""
        return self._told(index, int(self.reason[index])) if self.reason[index] else ""

    def row(self, index: int) -> dict[str, Any]:
        """Every number of a point under its name; the wire bytes of an axis as `wire sp`."""
        found: dict[str, Any] = {name: int(getattr(self, name)[index]) for name in (*BYTES, "worst_stage", "status")}
        found |= {f"wire {axis}": int(column[index]) for axis, column in self.wire_by_axis.items()}
        return found | {name: float(getattr(self, name)[index]) for name in ("flops_model", "flops_executed")}

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
    if any(not _equal(found[name], value) for name, value in wanted.items()):
        told = {name: (found[name], value) for name, value in wanted.items() if not _equal(found[name], value)}
        raise ArithmeticError(f"point {index}: (here, plan) are {told}")


def _equal(found: Any, wanted: Any) -> bool:
    """Whole numbers to the last digit; flops, which are sums in double precision here, to its rounding above 2^53."""
    if isinstance(found, float) and abs(wanted) >= 1 << 53:
        return bool(abs(found - wanted) <= abs(wanted) * 2.0**-48)
    return bool(found == wanted)
