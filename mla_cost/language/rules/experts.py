"""A mixture of experts: the router, the rows that travel to the experts and back, and products by groups of rows."""

from __future__ import annotations

from mla_cost.language.machine import Gradients, Machine, Tensor
from mla_cost.language.ops import op
from mla_cost.language.strides import can_view


@op("router")
def router(machine: Machine, label: str, logits: Tensor) -> tuple[Tensor, Tensor]:
    """logits [u b e] to fp32 weights [u b K] and the int64 experts chosen, which need no gradient.

    Keeps the fp32 scores [u b e], the weights and the choice.
    """
    rows = logits.dims[:-1]
    scores = machine.new(f"{label} scores", logits.dims, "fp32")
    weights = machine.new(label, (*rows, "K"), "fp32")
    chosen = machine.new(f"{label} choice", (*rows, "K"), "int64")
    # sigmoid, topk, gather, sum, quotient, product with the scale
    machine.runs("elementwise", [logits, scores, scores], [scores, weights, chosen], launches=6)
    name, dims, dtype = logits.label, logits.dims, logits.dtype

    def backward(gradients: Gradients) -> list[Tensor | None]:
        del gradients
        return [machine.new(f"gradient of {name}", dims, dtype)]

    machine.attach([weights], [logits], backward, saved=[scores, weights, chosen])
    return weights, chosen


@op("permute_rows", kind="permutation")
def permute_rows(machine: Machine, label: str, tokens: Tensor, choice: Tensor) -> Tensor:
    """One row for every expert chosen; the choice is a table."""
    del choice
    return permute(machine, label, tokens)


def permute(machine: Machine, label: str, tokens: Tensor) -> Tensor:
    """tokens [u b h] to one row for every expert chosen, [u b K h]. Keeps an int32 map of the rows."""
    *rows, hidden = tokens.dims
    result = machine.new(label, (*rows, "K", hidden), tokens.dtype)
    row_map = machine.new(f"{label} map", (*rows, "K"), "int32")
    name, dims, dtype = tokens.label, tokens.dims, tokens.dtype

    def backward(gradients: Gradients) -> list[Tensor | None]:
        del gradients
        return [machine.new(f"gradient of {name}", dims, dtype)]

    machine.attach([result], [tokens], backward, saved=[row_map])
    return result


@op("unpermute_rows", kind="permutation")
def unpermute_rows(machine: Machine, label: str, rows: Tensor, weights: Tensor, choice: Tensor) -> Tensor:
    """The rows of each token, weighted and summed; the choice is a table."""
    del choice
    return unpermute(machine, label, rows, weights)


def unpermute(machine: Machine, label: str, rows: Tensor, weights: Tensor) -> Tensor:
    """rows [u b K h] times weights, summed to [u b h]. Keeps the rows, the weights and an int32 map that it makes."""
    result = machine.new(label, (*rows.dims[:-2], rows.dims[-1]), rows.dtype)
    row_map = machine.new(f"{label} map", weights.dims, "int32")
    made = [(f"gradient of {tensor.label}", tensor.dims, tensor.dtype) for tensor in (rows, weights)]

    def backward(gradients: Gradients) -> list[Tensor | None]:
        del gradients
        return [machine.new(*item) for item in made]

    machine.attach([result], [rows, weights], backward, saved=[rows, weights, row_map])
    return result


@op("reorder", kind="permutation")
def reorder(machine: Machine, label: str, rows: Tensor) -> Tensor:
    """The rows in another order: a copy each way; the order is a table."""
    result = machine.copy(rows, label)
    name = rows.label

    def backward(gradients: Gradients) -> list[Tensor | None]:
        gradient = gradients[0]
        assert gradient is not None
        return [machine.copy(gradient, f"gradient of {name}")]

    machine.attach([result], [rows], backward)
    return result


@op("grouped_linear")
def grouped_linear(machine: Machine, label: str, rows: Tensor, weight: Tensor) -> Tensor:
    """Rows [.. in] times each its expert's part of weight [c out in]. Keeps the rows; the weight's gradient first."""
    outer = weight.dims[1]
    result = machine.new(label, (*rows.dims[:-1], outer), rows.dtype)
    count = machine.predicates.multiple((*rows.dims, outer), 2)
    machine.flops(count)
    shape = (weight.dims[:1], rows.dims[:-1], (outer,), rows.dims[-1:], rows.dtype)
    machine.multiplies_rows(*shape, back=False)
    made = [(f"gradient of {tensor.label}", tensor.dims, tensor.dtype) for tensor in (weight, rows)]
    split = len(rows.dims) - 1

    def backward(gradients: Gradients) -> list[Tensor | None]:
        gradient = gradients[0]
        assert gradient is not None
        machine.flops(count * 2)
        machine.multiplies_rows(*shape, back=True)
        if not can_view(machine.predicates, (gradient.axes[:split], gradient.axes[split:])):
            gradient = machine.copied(gradient, f"gradient of {label} copy")
        of_weight, of_rows = (machine.new(*item) for item in made)
        return [of_rows, of_weight]

    machine.attach([result], [rows, weight], backward, saved=[rows, weight])
    return result
