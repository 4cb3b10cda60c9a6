"""RMSNorm as one fused kernel: it keeps its input and one fp32 reciprocal root per row."""

from __future__ import annotations

from mla_cost.engine import Gradients, Machine, Tensor


def norm(machine: Machine, label: str, tensor: Tensor, weight: Tensor) -> Tensor:
    """Normalise the last axis. Keeps the input as it is given: a view pins its storage.

    Backward makes the input's gradient, then the weight's.
    """
    result = machine.copy(tensor, label)
    statistics = machine.new(f"{label} statistics", tensor.dims[:-1], "fp32")
    name, dims, dtype = tensor.label, tensor.dims, tensor.dtype
    weight_name, weight_dims = weight.label, weight.dims

    def backward(gradients: Gradients) -> list[Tensor | None]:
        del gradients
        return [
            machine.new(f"gradient of {name}", dims, dtype),
            machine.new(f"gradient of {weight_name}", weight_dims, dtype),
        ]

    machine.attach([result], [tensor, weight], backward, saved=[tensor, weight, statistics])
    return result
