"""Linear layers: torch folds the input to a matrix, multiplies, and views the result back."""

from __future__ import annotations

from mla_cost.language.dims import rank_share
from mla_cost.language.machine import Gradients, Machine, Tensor
from mla_cost.language.ops import op
from mla_cost.language.program import DeclarationError
from mla_cost.language.strides import Axes, can_view, contiguous, is_contiguous


@op("linear", absent="passed on", kind="copy")
def linear(machine: Machine, label: str, tensor: Tensor, weight: Tensor) -> Tensor:
    """tensor [rows.. inner..] times weight [outer.. inner..], contracted over the dims they share at the end.

    Keeps the input (a copy of it where its rows or its inner dims do not merge into one).
    """
    inner = _shared_end(tensor, weight)
    rows = len(tensor.axes) - inner
    tensor = _as_matrix(machine, tensor, rows)
    outer = weight.dims[: len(weight.axes) - inner]
    product = _multiply(machine, label, tensor, weight, rows, outer)
    return _viewed(machine, label, product, rows)


def _shared_end(tensor: Tensor, weight: Tensor) -> int:
    shared = 0
    for left, right in zip(reversed(tensor.dims), reversed(weight.dims), strict=False):
        if left != right:
            break
        shared += 1
    if not shared:
        raise DeclarationError(
            f"linear {tensor.label} [{' '.join(tensor.dims)}], {weight.label} [{' '.join(weight.dims)}]: "
            "the last dims differ, so there is nothing to contract"
        )
    return shared


def _as_matrix(machine: Machine, tensor: Tensor, rows: int) -> Tensor:
    if can_view(machine.predicates, (tensor.axes[:rows], tensor.axes[rows:])):
        return tensor
    copied = machine.copy(tensor, f"{tensor.label} copy")
    machine.attach([copied], [tensor], lambda gradients: [gradients[0]])
    return copied


def _multiply(
    machine: Machine, label: str, tensor: Tensor, weight: Tensor, rows: int, outer: tuple[str, ...]
) -> Tensor:
    kept = machine.inputs_kept(tensor, weight)
    result = machine.new(label, (*tensor.dims[:rows], *outer), tensor.dtype)
    needed = rank_share(machine.predicates, tensor.dims, outer)
    repeated = machine.predicates.elements((*tensor.dims, *outer)) * 2 - needed
    machine.flops(needed, repeated)
    folded_rows, inner = tensor.dims[:rows], tensor.dims[rows:]
    machine.multiplies(folded_rows, outer, inner, dtype=tensor.dtype)
    name, axes, dtype = tensor.label, _gradient_axes(machine, tensor, rows), tensor.dtype
    weight_name, weight_dims, weight_dtype = weight.label, weight.dims, weight.dtype
    folded = len(tensor.axes) > 2  # then the gradient is unfolded again: a view of the product

    def backward(gradients: Gradients) -> list[Tensor | None]:
        del gradients
        machine.flops(needed * 2, repeated * 2)
        machine.multiplies_back(folded_rows, outer, inner, dtype=dtype)
        of_weight = machine.new(f"gradient of {weight_name}", weight_dims, weight_dtype)
        of_input = machine.new_as(f"gradient of {name}", axes, dtype)
        return [machine.view(of_input, axes) if folded else of_input, of_weight]

    machine.attach([result], [tensor, weight], backward, saved=kept)
    return result


def _gradient_axes(machine: Machine, tensor: Tensor, rows: int) -> Axes:
    """A column-major matrix gets a column-major gradient, any other a row-major one (torch's mm_mat1_grad)."""
    predicates = machine.predicates
    if not is_contiguous(predicates, tensor.axes[rows:] + tensor.axes[:rows]):
        return contiguous(predicates, tensor.dims)
    turned = contiguous(predicates, tensor.dims[rows:] + tensor.dims[:rows])
    inner = len(turned) - rows
    return turned[inner:] + turned[:inner]


def _viewed(machine: Machine, label: str, product: Tensor, rows: int) -> Tensor:
    """The result as the caller sees it. Backward folds the gradient to a matrix, copying where it cannot be viewed."""
    view = machine.view(product, product.axes)

    def backward(gradients: Gradients) -> list[Tensor | None]:
        gradient = gradients[0]
        assert gradient is not None
        if can_view(machine.predicates, (gradient.axes[:rows], gradient.axes[rows:])):
            return [gradient]
        return [machine.copy(gradient, f"gradient of {label} copy")]

    machine.attach([view], [product], backward)
    return view
