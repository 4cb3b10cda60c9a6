"""Softmax over the last axis: it keeps its result."""

from __future__ import annotations

from mla_cost.language.machine import DTYPE_BYTES, Gradients, Machine, Tensor
from mla_cost.language.ops import Call, op
from mla_cost.language.polynomial import ZERO, Polynomial
from mla_cost.language.rules.elementwise import cast


@op("softmax", kind="softmax")
def softmax_of(call: Call, tensor: Tensor) -> Tensor:
    """Softmax in the dtype of the setting `softmax_dtype`."""
    wanted = call.settings["softmax_dtype"]
    return softmax(call.machine, call.label, tensor, tensor.dtype if wanted == "activation" else wanted)


def softmax(machine: Machine, label: str, tensor: Tensor, dtype: str) -> Tensor:
    """Softmax in `dtype`, cast back to the input's dtype; the casts are ops of their own.

    Inside its call a kernel may hold more, by device family: a copy of a strided operand, or gradient times output
    (`softmax_workspace` of the device). Both are recorded here and priced by the fold.
    """
    back = tensor.dtype
    result = _softmax(
        machine,
        label if dtype == back else f"{label} in {dtype}",
        cast(machine, f"{tensor.label} in {dtype}", tensor, dtype),
    )
    return cast(machine, label, result, back)


def _softmax(machine: Machine, label: str, tensor: Tensor) -> Tensor:
    result = machine.copy(tensor, label)
    machine.work(strided_input=_if_strided(machine, tensor))
    name = tensor.label

    def backward(gradients: Gradients) -> list[Tensor | None]:
        gradient = gradients[0]
        assert gradient is not None
        made = machine.copy(gradient, f"gradient of {name}")
        machine.work(strided_gradient=_if_strided(machine, gradient), gradient_times_output=_bytes(machine, gradient))
        return [made]

    machine.attach([result], [tensor], backward, saved=[result])
    return result


def _if_strided(machine: Machine, tensor: Tensor) -> Polynomial:
    return ZERO if machine.is_contiguous(tensor) else _bytes(machine, tensor)


def _bytes(machine: Machine, tensor: Tensor) -> Polynomial:
    return machine.predicates.multiple(tensor.dims, DTYPE_BYTES[tensor.dtype])
