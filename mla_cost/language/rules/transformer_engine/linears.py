"""Linears over a sequence shard: divided by rows or columns, whole, grouped by expert, with a norm before them.

`M:` and `T:` as in the package.
"""

from __future__ import annotations

from mla_cost.language.dims import rank_share
from mla_cost.language.machine import Gradients, Machine, PersistentBuffer, Tensor
from mla_cost.language.ops import op
from mla_cost.language.rules.exchange import TENSOR, recorded
from mla_cost.language.rules.split import contiguous
from mla_cost.language.rules.transformer_engine.sharding import gather_rows, scatter_rows, whole_dims

Dims = tuple[str, ...]
STAND_IN = "stand-ins for weight gradients"
GATHER_BUFFER = "gather buffer of the output head"


@op("linear", "column", kind="copy")
def column_linear(machine: Machine, label: str, tensor: Tensor, weight: Tensor) -> Tensor:
    """A weight divided by rows, over a sequence shard [u b in]: to [s b out].

    Keeps the shard. Forward gathers it into a tensor that dies with the product; backward gathers it again beside the
    input gradient, which is then reduced and scattered. T: module/linear.py:363-395, 565, 636, 875, 1000.
    """
    tensor = contiguous(machine, f"{label} input copy", tensor)
    product = _Product(machine, label, tensor, weight)
    result = product.forward()
    machine.attach([result], [tensor], lambda gradients: [product.backward(gradients[0])], saved=[tensor, weight])
    return result


@op("norm_linear", kind="copy")
def norm_linear(machine: Machine, label: str, tensor: Tensor, scale: Tensor, weight: Tensor) -> Tensor:
    """RMSNorm and a linear divided by rows in one module: [u b in] to [s b out].

    Copies an input that is not row-major (T: module/base.py:1639-1640; module/layernorm_linear.py:1727). Keeps the
    input, the normalised shard and fp32 roots; what is gathered is not kept (module/layernorm_linear.py:525-536).
    Backward gathers the normalised shard again, then goes through the norm.
    """
    tensor = contiguous(machine, f"{label} input copy", tensor)
    normal = machine.copy(tensor, f"{label} normed")
    roots = machine.new(f"{label} statistics", tensor.dims[:-1], "fp32")
    product = _Product(machine, label, normal, weight)
    machine.runs("norm", [tensor, scale], [normal, roots])
    result = product.forward()
    made = (f"gradient of {tensor.label}", tensor.dims, tensor.dtype)
    through = [machine.bytes_of(t.dims, t.dtype) for t in (tensor, roots, scale)]
    scaled = (f"gradient of {scale.label}", scale.dims, scale.dtype)

    def backward(gradients: Gradients) -> list[Tensor | None]:
        of_normal = product.backward(gradients[0])
        found = [machine.new(*made), machine.new(*scaled)]
        machine.runs("norm", [of_normal, *through], found)
        results: list[Tensor | None] = [*found]
        del of_normal, found
        return results

    machine.attach([result], [tensor, scale], backward, saved=[tensor, normal, roots, weight])
    return result


@op("linear", "duplicated", kind="copy")
def whole_linear(machine: Machine, label: str, tensor: Tensor, weight: Tensor) -> Tensor:
    """A linear whose input stands as it is: a weight that is whole on every rank, over this rank's positions.

    M: transformer/multi_latent_attention.py:526-531, 573-578 (parallel_mode `duplicated`). Keeps its input.
    """
    product = _Product(machine, label, tensor, weight, gathers=False)
    result = product.forward()
    machine.attach([result], [tensor], lambda gradients: [product.backward(gradients[0])], saved=[tensor, weight])
    return result


@op("linear", "row", kind="copy")
def row_linear(machine: Machine, label: str, tensor: Tensor, weight: Tensor) -> Tensor:
    """A weight divided by columns: [s b in] to a shard [u b out], reduced and scattered from the whole.

    Keeps its input. Backward gathers the gradient. T: module/linear.py:580; module/base.py, grad_output_preprocess.
    """
    tensor = contiguous(machine, f"{label} input copy", tensor)
    product = _Product(machine, label, tensor, weight, gathers=False)
    result = scatter_rows(machine, label, product.forward())

    def backward(gradients: Gradients) -> list[Tensor | None]:
        gradient = gradients[0]
        assert gradient is not None
        whole = gather_rows(machine, f"gradient of {label}", gradient.dims, gradient.dtype)
        return [product.backward(whole if machine.predicates.rows_divided else gradient)]

    machine.attach([result], [tensor], backward, saved=[tensor, weight])
    return result


@op("linear", "head", kind="copy")
def head_linear(machine: Machine, label: str, tensor: Tensor, weight: Tensor) -> Tensor:
    """Megatron's own output layer, divided by rows: as `column_linear`, gathering into a buffer that stands.

    M: tensor_parallel/layers.py:604, 623-629, 671 (`get_global_memory_buffer`, name "mpu").
    """
    product = _Product(machine, label, tensor, weight, buffered=True)
    result = product.forward()
    machine.attach([result], [tensor], lambda gradients: [product.backward(gradients[0])], saved=[tensor, weight])
    return result


@op("joined_linear", kind="copy")
def joined_linear(machine: Machine, label: str, tensor: Tensor, weight: Tensor) -> Tensor:
    """The projection of a multi-token-prediction module, divided by rows: its output is gathered over tp and cut.

    M: transformer/multi_token_prediction.py:1342-1358. [u b h+h] to [u b h]; only the input is kept.
    """
    columns = column_linear(machine, f"{label} columns", tensor, weight)
    if not machine.predicates.rows_divided:
        return _renamed(machine, label, columns)
    whole: Dims = (*columns.dims[:-1], "h")
    shard: Dims = tuple("u" if dim == "s" else dim for dim in whole)
    name, dims, dtype = columns.label, columns.dims, columns.dtype
    gathered = machine.new(f"{label} gathered", whole, dtype)
    recorded(machine, "all_gather", TENSOR, label, dims, dtype, dims)
    result = machine.new(label, shard, dtype)
    machine.runs("copy", [result], [result])
    del gathered

    def backward(gradients: Gradients) -> list[Tensor | None]:
        del gradients
        again = gather_rows(machine, f"gradient of {label}", shard, dtype)
        own = machine.new(f"gradient of {name}", dims, dtype)
        machine.runs("copy", [own], [own])
        del again
        return [own]

    machine.attach([result], [columns], backward)
    return result


@op("grouped_linear", "fused")
def grouped_rows(machine: Machine, label: str, rows: Tensor, weight: Tensor) -> Tensor:
    """Rows [.. in] times each its expert's part of weight [c out in]. Keeps the rows, once.

    T: module/grouped_linear.py:900-936.
    """
    outer = weight.dims[1]
    result = machine.new(label, (*rows.dims[:-1], outer), rows.dtype)
    count = machine.predicates.multiple((*rows.dims, outer), 2)
    machine.flops(count)
    shape = (weight.dims[:1], rows.dims[:-1], (outer,), rows.dims[-1:], rows.dtype)
    machine.multiplies_rows(*shape, back=False)
    _stands(machine, (outer,), (weight.dims[2],), weight.dtype)
    made = (f"gradient of {rows.label}", rows.dims, rows.dtype)

    def backward(gradients: Gradients) -> list[Tensor | None]:
        del gradients
        machine.flops(count * 2)
        machine.multiplies_rows(*shape, back=True)
        return [machine.new(*made)]

    machine.attach([result], [rows], backward, saved=[rows, weight])
    return result


class _Product:
    """The product of a linear and its backward, gathering its operand and scattering its gradient where it has to."""

    def __init__(
        self,
        machine: Machine,
        label: str,
        tensor: Tensor,
        weight: Tensor,
        *,
        gathers: bool = True,
        buffered: bool = False,
    ) -> None:
        self.machine = machine
        self.label = label
        self.name = tensor.label
        self.dims = tensor.dims
        self.dtype = tensor.dtype
        self.outer, self.inner = _sides(tensor, weight)
        self.gathers = gathers and machine.predicates.rows_divided
        self.buffered = buffered
        self.whole = whole_dims(self.dims) if self.gathers else self.dims
        _stands(machine, self.outer, self.inner, weight.dtype)
        if buffered and self.gathers:
            machine.timeline.persistent.append(
                PersistentBuffer(GATHER_BUFFER, self.whole[:-1], self.whole[-1:], self.dtype)
            )

    def _run(self, times: int) -> None:
        """Count the product so many times; what other tp ranks run as well, or rows that pad, no maths asks for."""
        needed = rank_share(self.machine.predicates, self.whole, self.outer)
        every = self.machine.predicates.multiple((*self.whole, *self.outer), 2)
        self.machine.flops(needed * times, (every - needed) * times)
        rows = self.whole[: len(self.whole) - len(self.inner)]
        if times == 1:
            self.machine.multiplies(rows, self.outer, self.inner, dtype=self.dtype)
        else:
            self.machine.multiplies_back(rows, self.outer, self.inner, dtype=self.dtype, into="fp32")

    def _operand(self) -> Tensor | None:
        """The gathered operand, where it is a tensor of its own."""
        if not self.gathers:
            return None
        if self.buffered:
            recorded(self.machine, "all_gather", TENSOR, self.name, self.dims, self.dtype, self.dims)
            return None
        return gather_rows(self.machine, self.name, self.dims, self.dtype)

    def forward(self) -> Tensor:
        operand = self._operand()
        rows = self.whole[: len(self.whole) - len(self.inner)]
        result = self.machine.new(self.label, (*rows, *self.outer), self.dtype)
        self._run(1)
        del operand
        return result

    def backward(self, gradient: Tensor | None) -> Tensor:
        """The gradient of what was given; the gathered operand lives until the weight's product has run."""
        machine = self.machine
        assert gradient is not None
        given = gradient
        if not machine.is_contiguous(gradient):
            given = machine.copied(gradient, f"gradient of {self.label} copy")
        operand = self._operand()
        made = machine.new(f"gradient of {self.name}", self.whole, self.dtype)
        self._run(2)
        if self.gathers:
            made = scatter_rows(machine, f"gradient of {self.name}", made)
        del given, operand
        return made


def _sides(tensor: Tensor, weight: Tensor) -> tuple[Dims, Dims]:
    """The dims of a weight that make its result's columns, and those it is contracted over."""
    for count in range(len(weight.dims) - 1, 0, -1):
        if tensor.dims[-count:] == weight.dims[-count:]:
            return weight.dims[:-count], weight.dims[-count:]
    raise ValueError(f"{tensor.label} [{' '.join(tensor.dims)}] does not meet {weight.label} [{' '.join(weight.dims)}]")


def _stands(machine: Machine, outer: Dims, inner: Dims, dtype: str) -> None:
    machine.timeline.persistent.append(PersistentBuffer(STAND_IN, outer, inner, dtype))


def _renamed(machine: Machine, label: str, tensor: Tensor) -> Tensor:
    """The same elements under the name of the whole width, where one rank holds all of it."""
    view = machine.view(tensor, machine.predicates.row_major((*tensor.dims[:-1], "h")))
    view.label = label
    dims = tensor.dims
    machine.attach([view], [tensor], lambda gradients: [_as(machine, gradients[0], dims)])
    return view


def _as(machine: Machine, gradient: Tensor | None, dims: Dims) -> Tensor:
    assert gradient is not None
    return machine.view(gradient, machine.predicates.row_major(dims))
