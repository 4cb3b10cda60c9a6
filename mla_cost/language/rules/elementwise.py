"""Ops that make one new tensor element by element: scale, cast, mask, add, negate."""

from __future__ import annotations

from mla_cost.language.machine import Gradients, Machine, Tensor
from mla_cost.language.ops import op
from mla_cost.language.program import DeclarationError


@op("scale")
def multiply(machine: Machine, label: str, tensor: Tensor) -> Tensor:
    """Tensor times a number or a table that needs no gradient: nothing is saved, a new tensor is made each way."""
    return _mapped(machine, label, tensor)


def negate(machine: Machine, label: str, tensor: Tensor) -> Tensor:
    """The negative: a new tensor each way."""
    return _mapped(machine, label, tensor)


@op("to_fp32")
def to_fp32(machine: Machine, label: str, tensor: Tensor) -> Tensor:
    """A copy in fp32."""
    return cast(machine, label, tensor, "fp32")


def cast(machine: Machine, label: str, tensor: Tensor, dtype: str) -> Tensor:
    """Another dtype; the gradient is cast back. The same dtype is the same tensor."""
    if dtype == tensor.dtype:
        return tensor
    return _mapped(machine, label, tensor, dtype)


def _mapped(machine: Machine, label: str, tensor: Tensor, dtype: str | None = None) -> Tensor:
    result = machine.elementwise(label, tensor, dtype)
    name, back = tensor.label, tensor.dtype

    def backward(gradients: Gradients) -> list[Tensor | None]:
        gradient = gradients[0]
        assert gradient is not None
        return [machine.elementwise(f"gradient of {name}", gradient, back)]

    machine.attach([result], [tensor], backward)
    return result


@op("mask")
def mask(machine: Machine, label: str, tensor: Tensor) -> Tensor:
    """masked_fill with a table: row-major results each way, whatever the strides; only the table is kept."""
    result = machine.copy(tensor, label)
    name = tensor.label

    def backward(gradients: Gradients) -> list[Tensor | None]:
        gradient = gradients[0]
        assert gradient is not None
        return [machine.copy(gradient, f"gradient of {name}")]

    machine.attach([result], [tensor], backward)
    return result


@op("add", absent="left out")
def add(machine: Machine, label: str, left: Tensor, right: Tensor) -> Tensor:
    """The sum. Backward hands the one gradient to both sides."""
    same_dims(left, right)
    result = machine.elementwise(label, left)

    def backward(gradients: Gradients) -> list[Tensor | None]:
        gradient = gradients[0]
        assert gradient is not None
        return [gradient, machine.view(gradient, gradient.axes)]

    machine.attach([result], [left, right], backward)
    return result


def same_dims(left: Tensor, right: Tensor) -> None:
    """Refuse operands of different dims.

    Raises:
        DeclarationError: naming both.

    """
    if left.dims != right.dims:
        shapes = " and ".join(f"{tensor.label} [{' '.join(tensor.dims)}]" for tensor in (left, right))
        raise DeclarationError(f"{shapes} have different dims")
