"""The router, and rows in the order of experts. `M:` and `T:` as in the package."""

from __future__ import annotations

from mla_cost.language.machine import Gradients, Machine, Tensor
from mla_cost.language.ops import op
from mla_cost.language.rules.exchange import EXPERT_TENSOR, scatter

Dims = tuple[str, ...]


@op("route")
def route(machine: Machine, label: str, hidden: Tensor, weight: Tensor) -> Tensor:
    """hidden [u b h] to fp32 weights [u b e], zero where an expert is not chosen.

    Keeps hidden, fp32 scores [u b e] twice (for the choice, and again for the auxiliary loss), the int64 choice and
    its fp32 scores [u b K], and two fp32 sums per token. With moe_router_dtype fp32 both products of backward are made
    in fp32, of an fp32 copy of hidden, and cast. M: transformer/moe/moe_utils.py:917-943, 960, 1382, 1425-1435.
    """
    rows = hidden.dims[:-1]
    logits = machine.new(f"{label} logits", (*rows, "e"), "fp32")
    count = machine.predicates.multiple((*hidden.dims, "e"), 2)
    machine.flops(count)
    machine.multiplies(rows, ("e",), hidden.dims[-1:], dtype=hidden.dtype, into="fp32")
    kept = _kept(machine, label, rows)
    result = machine.new(label, logits.dims, "fp32")
    # scores twice, the choice, what was chosen, its sum, quotient and scale, and the weights spread over all experts
    machine.runs("elementwise", [logits, logits, kept[0]], [*kept, result], launches=10)
    del logits
    (name, rows_of, dtype), (w_name, w_dims, w_dtype) = ((it.label, it.dims, it.dtype) for it in (hidden, weight))

    def backward(gradients: Gradients) -> list[Tensor | None]:
        del gradients
        of_logits = machine.new(f"gradient of {label} logits", (*rows, "e"), "fp32")
        machine.flops(count * 2)
        machine.runs("elementwise", [of_logits] * 3, [of_logits], launches=6)
        machine.multiplies_back(rows_of[:-1], ("e",), rows_of[-1:], dtype="fp32")
        copied = machine.new(f"{w_name} in fp32", w_dims, "fp32")
        of_hidden = machine.new(f"gradient of {name} in fp32", rows_of, "fp32")
        del copied
        copied = machine.new(f"{name} in fp32", rows_of, "fp32")
        of_weight = machine.new(f"gradient of {w_name} in fp32", w_dims, "fp32")
        del copied
        found = machine.new(f"gradient of {name}", rows_of, dtype)
        _casts(machine, rows_of, w_dims, dtype)
        del of_hidden
        results: list[Tensor | None] = [found, machine.new(f"gradient of {w_name}", w_dims, w_dtype)]
        del of_weight, of_logits
        return results

    machine.attach([result], [hidden, weight], backward, saved=[hidden, *kept])
    return result


def _kept(machine: Machine, label: str, rows: Dims) -> list[Tensor]:
    """What backward reads beside the hidden states."""
    kept = [machine.new(f"{label} {what}", (*rows, "e"), "fp32") for what in ("scores", "scores for the loss")]
    kept += [machine.new(f"{label} {what}", (*rows, "K"), to) for what, to in (("choice", "int64"), ("chosen", "fp32"))]
    kept += [machine.new(f"{label} {what}", rows, "fp32") for what in ("sum", "sum for the loss")]
    return kept


def _casts(machine: Machine, hidden: Dims, weight: Dims, dtype: str) -> None:
    """Of hidden states and weight to fp32, and of their gradients back: kernels only."""
    casts = [machine.bytes_of(dims, to) for dims in (hidden, weight) for to in (dtype, "fp32")]
    machine.runs("copy", [casts[0], casts[2], casts[1], casts[3]], casts, launches=4)


@op("rows_of", kind="permutation")
def permute(machine: Machine, label: str, tokens: Tensor, weights: Tensor) -> list[Tensor]:
    """One row for every expert that a token chose, each with its weight, and the map of rows.

    Keeps the int32 map alone: per token, two numbers per expert and one more (T: permutation.py:519;
    triton/permutation.py:52). tokens [u b h]: all experts, rows [u b K h]. tokens [D h]: this rank's, rows [R h].
    """
    arrived = tokens.dims[0] == "D"
    where: Dims = ("R",) if arrived else (*tokens.dims[:-1], "K")
    rows = machine.new(label, (*where, tokens.dims[-1]), tokens.dtype)
    row_weights = machine.new(f"{label} weights", where, "fp32")
    columns = "c+c+1" if arrived else "e+e+1"
    row_map = machine.new(f"{label} map", (*tokens.dims[:-1], columns), "int32")
    made = [(f"gradient of {tensor.label}", tensor.dims, tensor.dtype) for tensor in (tokens, weights)]

    def backward(gradients: Gradients) -> list[Tensor | None]:
        del gradients
        return [machine.new(*item) for item in made]

    machine.attach([rows, row_weights], [tokens, weights], backward, saved=[row_map])
    return [rows, row_weights, row_map]


@op("tokens_of", kind="permutation")
def unpermute(machine: Machine, label: str, rows: Tensor, row_map: Tensor) -> Tensor:
    """The rows of each token summed: keeps the map that `permute` made. T: permutation.py, unpermute without probs."""
    result = machine.new(label, (*row_map.dims[:-1], rows.dims[-1]), rows.dtype)
    made = (f"gradient of {rows.label}", rows.dims, rows.dtype)

    def backward(gradients: Gradients) -> list[Tensor | None]:
        del gradients
        return [machine.new(*made)]

    machine.attach([result], [rows], backward, saved=[row_map])
    return result


@op("sort_rows", kind="permutation")
def sort_rows(machine: Machine, label: str, given: list[Tensor]) -> list[Tensor]:
    """Rows (and their weights) ordered by expert, or back: a copy each way; keeps one int32 per row.

    Nothing where a rank has one expert (M: transformer/moe/token_dispatcher.py:755, 802). T: permutation.py:1250;
    triton/permutation.py:381.
    """
    if machine.predicates.is_one("c"):
        return given
    results = [machine.copy(tensor, tensor.label) for tensor in given]
    row_map = machine.new(f"{label} order", given[0].dims[:-1], "int32")
    made = [(f"gradient of {tensor.label}", tensor.dims, tensor.dtype) for tensor in given]

    def backward(gradients: Gradients) -> list[Tensor | None]:
        del gradients
        return [machine.new(*item) for item in made]

    machine.attach(results, given, backward, saved=[row_map])
    return results


@op("sum_in_fp32")
def sum_in_fp32(machine: Machine, label: str, rows: Tensor) -> Tensor:
    """Rows of all ranks of an expert [T R h], summed to this rank's [R h] in the dtype of the routing weights, fp32.

    Nothing where no rank shares an expert. Nothing is kept. M: transformer/moe/token_dispatcher.py:823-833.
    """
    if not machine.predicates.experts_split:
        return rows
    dtype = rows.dtype
    wide = _cast(machine, f"{label} in fp32", rows, "fp32")
    del rows
    own = scatter(machine, f"{label} in fp32", wide, EXPERT_TENSOR)
    del wide
    return _cast(machine, label, own, dtype)


def _cast(machine: Machine, label: str, tensor: Tensor, dtype: str) -> Tensor:
    """A copy in another dtype, its gradient cast back; nothing is kept."""
    result = machine.new(label, tensor.dims, dtype)
    made = (f"gradient of {tensor.label}", tensor.dims, tensor.dtype)
    machine.attach([result], [tensor], lambda _: [machine.new(*made)])
    return result


@op("add", "in-place", kind="elementwise")
def add_in_place(machine: Machine, label: str, first: Tensor, second: Tensor) -> Tensor:
    """The second added to the first where that lies: nothing new either way, and nothing is kept.

    M: transformer/moe/token_dispatcher.py:905-907, 2051.
    """
    view = machine.view(first, first.axes)
    view.label = label
    machine.runs("elementwise", [first, second], [first])

    def backward(gradients: Gradients) -> list[Tensor | None]:
        gradient = gradients[0]
        assert gradient is not None
        return [gradient, machine.view(gradient, gradient.axes)]

    machine.attach([view], [first, second], backward)
    return view
