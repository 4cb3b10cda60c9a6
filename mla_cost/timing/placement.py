"""Which ranks of a group share a node: axes of the mesh laid out over devices in order, the first one innermost."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any, Final, NamedTuple

from mla_cost.errors import InputError
from mla_cost.timing.rules import Crossing, local_ranks

# Megatron-Core's own names and default, parallel_state.py at d98e8a64, initialize_model_parallel(order=...)
DEFAULT_ORDER: Final = "tp-cp-ep-dp-pp"
_DENSE: Final = {"tp": "tp", "cp": "sp", "dp": "dp", "pp": "pp"}
_EXPERT: Final = {"tp": "etp", "ep": "ep", "dp": "expert_dp", "pp": "pp"}


class Placement(NamedTuple):
    """How far apart neighbours of each group are, in ranks, and how many devices a node holds. Numbers or arrays."""

    strides: Mapping[str, Any]
    domain: int

    def of(self, axis: str, ranks: Any, apart: Any = 1) -> Crossing:
        """How a group of so many ranks lies on nodes. apart: every which rank of the axis belongs to it."""
        return Crossing(ranks, local_ranks(ranks, self.strides[axis] * apart, self.domain))


def placement(degrees: Any, order: str, domain: int) -> Placement:
    """Where groups lie. degrees: anything with tp, sp, pp, ep, etp, dp; numbers or arrays.

    Raises:
        InputError: the order does not name each axis once.

    """
    axes = tuple(order.split("-"))
    if sorted(axes) != sorted(DEFAULT_ORDER.split("-")):
        raise InputError("not an order of axes", field="axis_order", value=order, allowed=f"as in {DEFAULT_ORDER}")
    expert_dp = degrees.tp * degrees.sp * degrees.dp // (degrees.ep * degrees.etp)
    sizes = {name: getattr(degrees, name) for name in ("tp", "sp", "pp", "ep", "etp", "dp")} | {"expert_dp": expert_dp}
    dense, expert = _strides(axes, _DENSE, sizes), _strides(axes, _EXPERT, sizes)
    inner = next(axis for axis in axes if axis in {"cp", "dp"})
    return Placement({**expert, **dense, "dp x sp": dense[_DENSE[inner]]}, domain)


def _strides(axes: tuple[str, ...], names: Mapping[str, str], sizes: Mapping[str, Any]) -> dict[str, Any]:
    inside = [names[axis] for axis in axes if axis in names]
    found = {inside[0]: 1}
    for before, axis in pairwise(inside):
        found[axis] = found[before] * sizes[before]
    return found
