"""Activations of a gated MLP in one kernel. `M:` and `T:` as in the package."""

from __future__ import annotations

from mla_cost.language.machine import Gradients, Machine, Tensor
from mla_cost.language.ops import op


@op("swiglu")
def swiglu(machine: Machine, label: str, gate_up: Tensor, dim: str) -> Tensor:
    """Silu of the gate times the other half, in one kernel: keeps its input only.

    M: fusions/fused_bias_swiglu.py:235.
    """
    result = machine.new(label, (*gate_up.dims[:-1], dim), gate_up.dtype)
    made = (f"gradient of {gate_up.label}", gate_up.dims, gate_up.dtype)

    def backward(gradients: Gradients) -> list[Tensor | None]:
        del gradients
        return [machine.new(*made)]

    machine.attach([result], [gate_up], backward, saved=[gate_up])
    return result


@op("swiglu", "weighted")
def weighted_swiglu(machine: Machine, label: str, gate_up: Tensor, weights: Tensor, dim: str) -> Tensor:
    """The same times each row's routing weight (fp32), which is kept too. M: fusions/fused_bias_swiglu.py:270.

    So weights apply before the second product, whose result nothing keeps (M: transformer/moe/experts.py:898-1036).
    """
    result = machine.new(label, (*gate_up.dims[:-1], dim), gate_up.dtype)
    made = [(f"gradient of {tensor.label}", tensor.dims, tensor.dtype) for tensor in (gate_up, weights)]

    def backward(gradients: Gradients) -> list[Tensor | None]:
        del gradients
        return [machine.new(*item) for item in made]

    machine.attach([result], [gate_up, weights], backward, saved=[gate_up, weights])
    return result
