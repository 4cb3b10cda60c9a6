"""A router and the rows of experts as plain torch runs them, one kernel after the other (docs/decisions/0021)."""

from __future__ import annotations

from mla_cost.language.machine import Gradients, Machine, Tensor
from mla_cost.language.ops import op
from mla_cost.language.rules.elementwise import cast, multiply
from mla_cost.language.rules.norm import product_over
from mla_cost.language.strides import Axis


@op("router", "torchtitan")
def titan_router(machine: Machine, label: str, logits: Tensor) -> tuple[Tensor, Tensor]:
    """logits [u b e], scored by sigmoid in fp32, to fp32 weights [u b K] and the int64 experts chosen.

    Keeps the scores, the choice, what was chosen before it is divided by its sum, and the sum. The best biased scores
    stay in a name to the end.
    """
    scores = _sigmoid(machine, f"{label} scores", cast(machine, f"{logits.label} in fp32", logits, "fp32"))
    best, chosen = _best(machine, label, scores)
    raw = _gathered(machine, f"{label} before their sum", scores, chosen)
    total = _sum(machine, label, raw)
    quotient = _quotient(machine, label, raw, raw, total, machine.new(f"{label} of sum 1", raw.dims, "fp32"))
    del raw, total
    weights = multiply(machine, label, quotient)
    del quotient, best
    return weights, chosen


@op("router", "transformers")
def wide_router(machine: Machine, label: str, logits: Tensor) -> tuple[Tensor, Tensor]:
    """As torchtitan's, of logits in fp32; the choice is made without a graph, and the division is in place.

    So a copy of what is divided is kept.
    """
    scores = _sigmoid(machine, f"{label} scores", logits)
    best, chosen = _best(machine, label, scores)
    del best
    raw = _gathered(machine, f"{label} before their sum", scores, chosen)
    total = _sum(machine, label, raw)
    quotient = _quotient(machine, label, raw, machine.copy(raw, f"{raw.label}, copy"), total, raw)
    del raw
    weights = multiply(machine, label, quotient)
    del quotient, total
    return weights, chosen


def _sigmoid(machine: Machine, label: str, tensor: Tensor) -> Tensor:
    """Keeps its result."""
    result = machine.new(label, tensor.dims, tensor.dtype)
    name, dims, dtype = tensor.label, tensor.dims, tensor.dtype
    size = machine.bytes_of(dims, dtype)

    def backward(gradients: Gradients) -> list[Tensor | None]:
        del gradients
        machine.runs("elementwise", [size, size], [size])
        return [machine.new(f"gradient of {name}", dims, dtype)]

    machine.attach([result], [tensor], backward, saved=[result])
    return result


def _best(machine: Machine, label: str, scores: Tensor) -> tuple[Tensor, Tensor]:
    """The K largest of the scores with a bias, which is a table, and where they stand."""
    biased = machine.elementwise(f"{label} scores with their bias", scores)
    rows = scores.dims[:-1]
    best = machine.new(f"{label} best scores", (*rows, "K"), scores.dtype)
    chosen = machine.new(f"{label} choice", (*rows, "K"), "int64")
    machine.runs("elementwise", [scores, biased], [biased, best, chosen], launches=2)
    machine.reported()
    return best, chosen


def _gathered(machine: Machine, label: str, scores: Tensor, chosen: Tensor) -> Tensor:
    """The scores of those chosen; torch keeps the scores for their shape."""
    result = machine.new(label, chosen.dims, scores.dtype)
    name, dims, dtype = scores.label, scores.dims, scores.dtype

    def backward(gradients: Gradients) -> list[Tensor | None]:
        del gradients
        return [machine.written_into_zeros(f"gradient of {name}", dims, dtype)]

    machine.attach([result], [scores], backward, saved=[scores, chosen])
    return result


def _sum(machine: Machine, label: str, raw: Tensor) -> Tensor:
    """One number per token, and a small one more: a tensor each."""
    found = machine.new(f"{label} sum", raw.dims[:-1], raw.dtype)
    last = raw.dims[-1]

    def backward(gradients: Gradients) -> list[Tensor | None]:
        gradient = gradients[0]
        assert gradient is not None
        return [machine.view(gradient, (*gradient.axes, Axis(last, None)))]

    machine.attach([found], [raw], backward)
    result = machine.copy(found, f"{label} sum and a little")
    machine.attach([result], [found], lambda gradients: [gradients[0]])
    return result


def _quotient(machine: Machine, label: str, raw: Tensor, kept: Tensor, total: Tensor, result: Tensor) -> Tensor:
    """raw / total as the tensor `result`, which may be raw itself; keeps `kept`, which holds raw's values, and total.

    Backward: -gradient * (raw / total / total), product by product, then the gradient by the total, then the sum.
    """
    view = machine.view(result, result.axes)
    dims, summed = raw.dims, not machine.predicates.is_one(raw.dims[-1])
    size = machine.bytes_of(dims, "fp32")

    def backward(gradients: Gradients) -> list[Tensor | None]:
        del gradients
        machine.runs("elementwise", [size] * 7, [size] * 5, launches=6)
        held = [machine.new(f"{label} {what}", dims, "fp32") for what in ("quotient", "by its sum again", "negated")]
        of_total = machine.new(f"gradient of {label} sum, unsummed", dims, "fp32")
        held.clear()
        of_raw = machine.new(f"gradient of {label}, through their quotient", dims, "fp32")
        machine.returns()
        if summed:
            of_total = machine.new(f"gradient of {label} sum", dims[:-1], "fp32")
        return [of_raw, machine.view(of_total, of_total.axes[: len(dims) - 1])]

    machine.attach([view], [raw, total], backward, saved=[kept, total])
    return view


@op("expert_rows", "gather", kind="permutation")
def rows_by_gather(machine: Machine, label: str, tokens: Tensor, weights: Tensor, chosen: Tensor) -> list[Tensor]:
    """tokens [u b h] to one row [u b K h] for every expert chosen, the rows' weights, and where each came from, int64.

    `gather` keeps the tokens, for their shape, and the index, which is spread over h without a copy.
    """
    row_weights, positions = _ordered(machine, label, weights, chosen)[:2]
    return [_taken(machine, label, tokens, positions, [tokens, positions]), row_weights, positions]


@op("expert_rows", "index", kind="permutation")
def rows_by_index(machine: Machine, label: str, tokens: Tensor, weights: Tensor, chosen: Tensor) -> list[Tensor]:
    """The same by indexing, which keeps the index alone. The order stays in a name until the rows are there."""
    row_weights, positions, order = _ordered(machine, label, weights, chosen)
    rows = _taken(machine, label, tokens, positions, [positions])
    del order
    return [rows, row_weights, positions]


def _ordered(machine: Machine, label: str, weights: Tensor, chosen: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The weights in the order of their experts, the position that each row is taken from, and the order, kept."""
    values = machine.copy(chosen, f"{label} experts in order")
    order = machine.copy(chosen, f"{label} order")
    machine.runs("permutation", [chosen], [values, order])
    del values
    row_weights = machine.copy(weights, f"{label} weights")
    machine.runs("permutation", [weights, order], [row_weights])
    name, dims, dtype = weights.label, weights.dims, weights.dtype

    def backward(gradients: Gradients) -> list[Tensor | None]:
        del gradients
        return [machine.written_into_zeros(f"gradient of {name}", dims, dtype)]

    machine.attach([row_weights], [weights], backward, saved=[order])
    positions = machine.copy(order, f"{label} positions")
    machine.runs("elementwise", [order], [positions])
    machine.reported()
    return row_weights, positions, order


def _taken(machine: Machine, label: str, tokens: Tensor, positions: Tensor, saved: list[Tensor]) -> Tensor:
    result = machine.new(label, (*positions.dims, tokens.dims[-1]), tokens.dtype)
    name, dims, dtype = tokens.label, tokens.dims, tokens.dtype

    def backward(gradients: Gradients) -> list[Tensor | None]:
        del gradients
        return [machine.written_into_zeros(f"gradient of {name}", dims, dtype)]

    machine.attach([result], [tokens], backward, saved=saved)
    return result


@op("weigh_rows", "torchtitan")
def weigh_and_round(machine: Machine, label: str, rows: Tensor, row_weights: Tensor) -> Tensor:
    """rows [.. h] in fp32 times their weights [..], and back to their dtype. Keeps the rows in fp32 and the weights."""
    wide = cast(machine, f"{rows.label} in fp32", rows, "fp32")
    product = product_over(
        machine, f"{label} in fp32", wide, row_weights, (*row_weights.axes, Axis(wide.dims[-1], None))
    )
    del wide
    return cast(machine, label, product, rows.dtype)


@op("weigh_rows", "transformers")
def weigh(machine: Machine, label: str, rows: Tensor, row_weights: Tensor) -> Tensor:
    """rows [.. h] times their fp32 weights [..], which makes the product fp32. Keeps both as they are."""
    result = machine.new(label, rows.dims, "fp32")
    name, dims, dtype = rows.label, rows.dims, rows.dtype
    weight_name, weight_dims = row_weights.label, row_weights.dims
    narrow, wide = machine.bytes_of(dims, dtype), machine.bytes_of(dims, "fp32")

    def backward(gradients: Gradients) -> list[Tensor | None]:
        """Both products, the rows' own cast to their dtype, then the sum of the weights'."""
        del gradients
        machine.runs("elementwise", [wide, narrow, wide, wide, wide], [wide, wide, narrow], launches=4)
        unsummed = machine.new(f"gradient of {weight_name}, unsummed", dims, "fp32")
        of_rows = machine.new(f"gradient of {name}", dims, "fp32")
        machine.returns()
        if dtype != "fp32":
            of_rows = machine.new(f"gradient of {name}", dims, dtype)
        of_weights = machine.new(f"gradient of {weight_name}", weight_dims, "fp32")
        del unsummed
        return [of_rows, of_weights]

    machine.attach([result], [rows, row_weights], backward, saved=[rows, row_weights])
    return result


@op("zeros")
def zeros(machine: Machine, label: str, like: Tensor) -> Tensor:
    """Zeros of the same dims and dtype, which need no gradient."""
    return _zeros(machine, label, like, like.dtype)


@op("zeros", "fp32")
def zeros_in_fp32(machine: Machine, label: str, like: Tensor) -> Tensor:
    """Zeros of the same dims in fp32."""
    return _zeros(machine, label, like, "fp32")


def _zeros(machine: Machine, label: str, like: Tensor, dtype: str) -> Tensor:
    result = machine.new(label, like.dims, dtype)
    machine.runs("elementwise", [], [result])
    machine.reported()
    return result


@op("to_activation")
def to_activation(machine: Machine, label: str, tensor: Tensor) -> Tensor:
    """A copy in the dtype of activations."""
    return cast(machine, label, tensor, machine.dtype)


@op("add_rows", "scatter", kind="permutation")
def add_by_scatter(machine: Machine, label: str, total: Tensor, rows: Tensor, positions: Tensor) -> Tensor:
    """rows [u b K h] added to a copy of the total [u b h] where they came from. Keeps the index."""
    kept = machine.inputs_kept(positions)
    result = machine.copy(total, label)
    _added(machine, result, total, rows, kept)
    return result


@op("add_rows", "index", kind="permutation")
def add_by_index(machine: Machine, label: str, total: Tensor, rows: Tensor, positions: Tensor) -> Tensor:
    """rows [u b K h] added into the total [u b h] itself. Keeps the index, and the rows for their shape."""
    result = machine.view(total, total.axes)
    result.label = label
    machine.runs("permutation", [rows, total], [total])
    _added(machine, result, total, rows, [positions, rows])
    return result


def _added(machine: Machine, result: Tensor, total: Tensor, rows: Tensor, saved: list[Tensor]) -> None:
    name, dims, dtype = rows.label, rows.dims, rows.dtype

    def backward(gradients: Gradients) -> list[Tensor | None]:
        """The gradient itself, and its rows."""
        gradient = gradients[0]
        assert gradient is not None
        return [gradient, machine.new(f"gradient of {name}", dims, dtype)]

    machine.attach([result], [total, rows], backward, saved=saved)
