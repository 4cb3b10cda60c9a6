"""What sequence shards are made of: gathered over tensor parallelism, scattered, and cut.."""

from __future__ import annotations

from mla_cost.language.machine import Machine, Tensor
from mla_cost.language.ops import op
from mla_cost.language.rules.exchange import TENSOR, recorded
from mla_cost.language.strides import Axis

Dims = tuple[str, ...]


def gather_rows(machine: Machine, label: str, dims: Dims, dtype: str) -> Tensor | None:
    """All ranks' positions of a tensor with these dims; None where nothing divides them."""
    if not machine.predicates.rows_divided:
        return None
    found = machine.new(f"{label} gathered", whole_dims(dims), dtype)
    recorded(machine, "all_gather", TENSOR, label, dims, dtype, dims)
    return found


def scatter_rows(machine: Machine, label: str, tensor: Tensor) -> Tensor:
    """The sum over tp ranks, this rank's positions."""
    if not machine.predicates.rows_divided:
        return tensor
    dims = tuple("u" if dim == "s" else dim for dim in tensor.dims)
    found = machine.new(label, dims, tensor.dtype)
    recorded(machine, "reduce_scatter", TENSOR, label, tensor.dims, tensor.dtype, dims)
    return found


def whole_dims(dims: Dims) -> Dims:
    """The same over all positions."""
    return tuple("s" if dim == "u" else dim for dim in dims)


@op("gather_columns", kind="copy")
def gather_columns(machine: Machine, label: str, tensor: Tensor, dim: str) -> Tensor:
    """Every rank's columns [s b part] on every rank, [s b dim]: gathered, then joined into a second tensor.

    Backward copies this rank's columns of the gradient. M: tensor_parallel/mappings.py, _gather_along_last_dim and
    _split_along_last_dim.
    """
    gathered = machine.new(f"{label} gathered", ("t", *tensor.dims), tensor.dtype)
    recorded(machine, "all_gather", TENSOR, label, tensor.dims, tensor.dtype, tensor.dims)
    result = machine.new(label, (*tensor.dims[:-1], dim), tensor.dtype)
    machine.runs("copy", [gathered], [result])
    del gathered
    made = (f"gradient of {tensor.label}", tensor.dims, tensor.dtype)
    machine.attach([result], [tensor], lambda _: [machine.new(*made)])
    return result


@op("own_rows", kind="copy")
def own_rows(machine: Machine, label: str, tensor: Tensor) -> Tensor:
    """This rank's positions of [s b d]: [u b d], a view that pins the whole where that is row-major, else a copy.

    Backward gathers the gradient over tp. M: tensor_parallel/mappings.py, _split_along_first_dim.
    """
    first, *rest = tensor.axes
    view = machine.view(tensor, (Axis("u", first.stride), *rest))
    result = view if machine.is_contiguous(tensor) else machine.copy(view, label)
    result.label = label
    name, dims, dtype = tensor.label, result.dims, tensor.dtype
    machine.attach([result], [tensor], lambda _: [gather_rows(machine, f"gradient of {name}", dims, dtype)])
    return result
