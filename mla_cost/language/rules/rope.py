"""Rotary embedding by rotate-half, op by op: five new tensors each way, only tables kept."""

from __future__ import annotations

from mla_cost.language.machine import Machine, Tensor
from mla_cost.language.ops import op
from mla_cost.language.rules.elementwise import add, multiply, negate
from mla_cost.language.rules.split import concat, cut_up


@op("rope", absent="passed on", kind="rope")
def rope(machine: Machine, label: str, tensor: Tensor) -> Tensor:
    """x * cos + rotate_half(x) * sin over the last axis."""
    turned = multiply(machine, f"{label} cosine part", tensor)
    rotated = _rotate_half(machine, f"{label} rotated half", tensor)
    rotated = multiply(machine, f"{label} sine part", rotated)
    return add(machine, label, turned, rotated)


def _rotate_half(machine: Machine, label: str, tensor: Tensor) -> Tensor:
    at = len(tensor.axes) - 1
    first, second = cut_up(machine, tensor, at, [(f"{label}, first", "r_half"), (f"{label}, second", "r_half")])
    return concat(machine, label, [negate(machine, f"{label}, negated", second), first], tensor.dims[-1])
