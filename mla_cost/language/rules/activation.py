"""The MLP's activation: silu of the gate, times the other half."""

from __future__ import annotations

from mla_cost.language.machine import Gradients, Machine, Tensor
from mla_cost.language.ops import op
from mla_cost.language.rules.elementwise import same_dims


@op("silu")
def silu(machine: Machine, label: str, tensor: Tensor) -> Tensor:
    """One op that keeps its input as it is given (a view pins the whole) and makes a row-major result each way."""
    result = machine.copy(tensor, label)
    name, dims, dtype = tensor.label, tensor.dims, tensor.dtype

    def backward(gradients: Gradients) -> list[Tensor | None]:
        del gradients
        return [machine.new(f"gradient of {name}", dims, dtype)]

    machine.attach([result], [tensor], backward, saved=[tensor])
    return result


@op("times")
def times(machine: Machine, label: str, left: Tensor, right: Tensor) -> Tensor:
    """The product of two tensors, both kept. Backward makes the left one's gradient first."""
    same_dims(left, right)
    result = machine.elementwise(label, left)
    names = (left.label, right.label)
    made = machine.bytes_of(left.dims, left.dtype)

    def backward(gradients: Gradients) -> list[Tensor | None]:
        gradient = gradients[0]
        assert gradient is not None
        machine.runs("elementwise", [made] * 4, [made] * 2, launches=2)  # the gradient times each of them
        return [machine.elementwise(f"gradient of {name}", gradient) for name in names]

    machine.attach([result], [left, right], backward, saved=[left, right])
    return result
