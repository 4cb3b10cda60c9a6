"""Ops that cut tensors up or join them: split, slice, own rows, concat, expand, pad."""

from __future__ import annotations

from collections.abc import Sequence

from mla_cost.language.machine import Gradients, Machine, Tensor
from mla_cost.language.ops import Part, op
from mla_cost.language.program import DeclarationError
from mla_cost.language.strides import Axes, Axis


@op("split", kind="copy")
def split(machine: Machine, tensor: Tensor, parts: Sequence[Part]) -> list[Tensor]:
    """Views along the axis whose name is the sum of the parts. parts: (label, dim) each.

    Backward makes one fresh tensor of the full size, with zeros first for a part that got no gradient. A part of size
    zero is absent, and the only one that is not is the tensor itself.
    """
    missing = machine.predicates.zeros
    present = [part for part in parts if part[1] not in missing]
    at = _position(tensor, "+".join(dim for _, dim in present))
    if len(present) == len(parts):
        return cut_up(machine, tensor, at, parts)
    views = [tensor] if len(present) == 1 else cut_up(machine, tensor, at, present)
    return [
        machine.absent(label, (*tensor.dims[:at], dim, *tensor.dims[at + 1 :])) if dim in missing else views.pop(0)
        for label, dim in parts
    ]


def _position(tensor: Tensor, dim: str) -> int:
    if dim not in tensor.dims:
        raise DeclarationError(
            f"{tensor.label} is [{' '.join(tensor.dims)}], without a dim {dim}", nearest=nearest_dims(dim, tensor.dims)
        )
    return tensor.position(dim)


def nearest_dims(dim: str, dims: Sequence[str]) -> tuple[str, ...]:
    """Dims that look like it, for a message."""
    from mla_cost.errors import nearest

    return nearest(dim, dims)


@op("slice", absent="passed on", kind="copy")
def slice_of(machine: Machine, label: str, tensor: Tensor, dim: str) -> Tensor:
    """The first part of the last axis; the tensor itself where the rest is absent."""
    if dim == tensor.dims[-1]:
        return tensor
    if dim not in tensor.dims[-1].split("+"):
        raise DeclarationError(f"{tensor.label} ends in {tensor.dims[-1]}, of which {dim} is no part")
    return narrow(machine, label, tensor, len(tensor.axes) - 1, dim)


@op("cut", kind="copy")
def cut(machine: Machine, label: str, tensor: Tensor, like: Tensor) -> Tensor:
    """Cut back to the width of the second operand."""
    return narrow(machine, label, tensor, len(tensor.axes) - 1, like.dims[-1])


@op("cut_to")
def cut_to(machine: Machine, label: str, words: tuple[str, ...], tensor: Tensor) -> Tensor:
    """Cut back to the width that the word names."""
    return narrow(machine, label, tensor, len(tensor.axes) - 1, words[0])


@op("pad", kind="copy")
def pad_to(machine: Machine, label: str, tensor: Tensor, like: Tensor) -> Tensor:
    """Filled up to the width of the second operand."""
    return pad(machine, label, tensor, like.dims[-1])


@op("own_heads", kind="copy")
def own_heads(machine: Machine, weight: Tensor) -> Tensor:
    """This rank's rows of a weight, a view."""
    return narrow(machine, weight.label, weight, _position(weight, "n"), machine.predicates.heads)


@op("concat", absent="left out", kind="copy")
def concat_of(machine: Machine, label: str, tensors: list[Tensor]) -> Tensor:
    """Joined along the last axis, whose name is the sum of theirs."""
    first, *rest = tensors
    for tensor in rest:
        if tensor.dims[:-1] != first.dims[:-1]:
            shapes = " and ".join(f"{it.label} [{' '.join(it.dims)}]" for it in (first, tensor))
            raise DeclarationError(f"{shapes} differ before their last dims")
    return concat(machine, label, tensors, "+".join(tensor.dims[-1] for tensor in tensors))


@op("expand", absent="passed on", kind="copy")
def expand_to(machine: Machine, label: str, tensor: Tensor, heads: Tensor) -> Tensor:
    """One row for every head that the second operand has."""
    return expand(machine, label, tensor, 2, heads.dims[2])


def cut_up(machine: Machine, tensor: Tensor, at: int, parts: Sequence[tuple[str, str]]) -> list[Tensor]:
    """`split` along the axis at a position, whatever its name."""
    views = [_part(machine, tensor, at, label, dim) for label, dim in parts]
    name, dims, dtype = tensor.label, tensor.dims, tensor.dtype
    shapes = [(view.label, view.dims) for view in views]

    def backward(gradients: Gradients) -> list[Tensor | None]:
        held = [
            machine.new(f"zeros for {label}", shape, dtype)
            for gradient, (label, shape) in zip(gradients, shapes, strict=True)
            if gradient is None
        ]
        joined = machine.new(f"gradient of {name}", dims, dtype)
        held.clear()
        return [joined]

    machine.attach(views, [tensor], backward)
    return views


def _part(machine: Machine, tensor: Tensor, at: int, label: str, dim: str) -> Tensor:
    view = machine.view(tensor, _renamed(tensor.axes, at, dim))
    view.label = label
    return view


def _renamed(axes: Axes, at: int, dim: str) -> Axes:
    return (*axes[:at], Axis(dim, axes[at].stride), *axes[at + 1 :])


def narrow(machine: Machine, label: str, tensor: Tensor, at: int, dim: str) -> Tensor:
    """A view of some positions of one axis. Backward makes full-size zeros and writes into them."""
    view = _part(machine, tensor, at, label, dim)
    name, dims, dtype = tensor.label, tensor.dims, tensor.dtype

    def backward(gradients: Gradients) -> list[Tensor | None]:
        del gradients
        return [machine.new(f"gradient of {name}", dims, dtype)]

    machine.attach([view], [tensor], backward)
    return view


def concat(machine: Machine, label: str, tensors: Sequence[Tensor], dim: str) -> Tensor:
    """A new tensor, joined along the last axis, which gets the name `dim`. Backward hands out views of its gradient."""
    first = tensors[0]
    result = machine.new(label, (*first.dims[:-1], dim), first.dtype)
    lasts = [tensor.dims[-1] for tensor in tensors]

    def backward(gradients: Gradients) -> list[Tensor | None]:
        gradient = gradients[0]
        assert gradient is not None
        at = len(gradient.axes) - 1
        return [machine.view(gradient, _renamed(gradient.axes, at, last)) for last in lasts]

    machine.attach([result], tensors, backward)
    return result


def expand(machine: Machine, label: str, tensor: Tensor, at: int, dim: str) -> Tensor:
    """A view with a new axis of stride zero before position `at`. Backward sums over it into a fresh tensor.

    An axis of size one is no expansion, so there backward is a view.
    """
    view = machine.view(tensor, (*tensor.axes[:at], Axis(dim, None), *tensor.axes[at:]))
    view.label = label
    name, dims = tensor.label, tensor.dims
    trivial = machine.predicates.is_one(dim)

    def backward(gradients: Gradients) -> list[Tensor | None]:
        gradient = gradients[0]
        assert gradient is not None
        if trivial:
            return [machine.view(gradient, (*gradient.axes[:at], *gradient.axes[at + 1 :]))]
        return [machine.new(f"gradient of {name}", dims, gradient.dtype)]

    machine.attach([view], [tensor], backward)
    return view


@op("contiguous", absent="passed on", kind="copy")
def contiguous(machine: Machine, label: str, tensor: Tensor) -> Tensor:
    """A row-major copy, or the tensor itself where it is row-major already. Backward passes the gradient on."""
    if machine.is_contiguous(tensor):
        return tensor
    result = machine.copy(tensor, label)
    machine.attach([result], [tensor], lambda gradients: [gradients[0]])
    return result


def pad(machine: Machine, label: str, tensor: Tensor, dim: str) -> Tensor:
    """A new tensor whose last axis is filled up to `dim` with zeros. Backward copies the part that was there."""
    result = machine.new(label, (*tensor.dims[:-1], dim), tensor.dtype)
    name, dims, dtype = tensor.label, tensor.dims, tensor.dtype

    def backward(gradients: Gradients) -> list[Tensor | None]:
        del gradients
        return [machine.new(f"gradient of {name}", dims, dtype)]

    machine.attach([result], [tensor], backward)
    return result
