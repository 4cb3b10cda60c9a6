"""What a text says of a checkpoint that drops its own output."""

from __future__ import annotations

from mla_cost.language.machine import Machine, Tensor
from mla_cost.language.ops import op


@op("remade")
def remade(machine: Machine, tensor: Tensor, source: Tensor) -> Tensor:
    """The first operand, before whose backward the second is made again where a checkpoint discarded it."""
    return machine.remade(tensor, source)
