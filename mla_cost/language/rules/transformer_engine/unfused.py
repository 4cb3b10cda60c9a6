"""Attention without a fused kernel, as Transformer Engine runs it: scores, a masked softmax, values by probabilities.

T: attention/dot_product_attention/backends.py, UnfusedDotProductAttention, no dropout, no bias; softmax.py,
`forward_fused_softmax`. Heads lie outermost, one batched product each way. `T:` as in the package.
"""

from __future__ import annotations

from mla_cost.language.machine import Gradients, Machine, Tensor
from mla_cost.language.ops import op
from mla_cost.language.strides import can_view


@op("causal_mask")
def causal_mask(machine: Machine, label: str, query: Tensor, key: Tensor) -> Tensor:
    """The mask [s t] of one call, a byte each, from three tables of int32; no gradient reaches it.

    T: attention/dot_product_attention/utils.py, get_full_mask: distances, shifted to both sides, compared with 0.
    """
    dims = query.dims[0], key.dims[0]

    def table(what: str, *given: Tensor, dtype: str = "bool") -> Tensor:
        made = machine.new(f"{label}, {what}", dims, dtype)
        machine.runs("elementwise", given, [made])
        return made

    positions = [machine.new(f"{label}, positions", (dim,), "int32") for dim in dims]
    distances = table("distances", *positions, dtype="int32")
    del positions
    left, right = (table(f"{side} distances", distances, dtype="int32") for side in ("left", "right"))
    inside, beyond = table("left of it", left), table("right of it", right)
    before = table("not right of it", beyond)
    del beyond
    seen = table("seen", inside, before)
    del inside, before
    return table("hidden", seen)


@op("scaled_scores")
def scaled_scores(machine: Machine, label: str, query: Tensor, key: Tensor) -> Tensor:
    """query [s b n d] and key [t b n d] to [b n s t], scaled inside the product (`baddbmm` with beta 0).

    It is handed an empty tensor as large as its result, and makes the result beside it. Keeps query and key. Backward
    makes each product and then its scaled copy: torch's formula of `baddbmm`.
    """
    query, key = (_rows(machine, tensor) for tensor in (query, key))
    (s, b, n, d), t = query.dims, key.dims[0]
    empty = machine.new(f"{label}, allocated before", (b, n, s, t), query.dtype)
    result = machine.new(label, (b, n, s, t), query.dtype)
    count = machine.predicates.elements((b, n, s, t, d)) * 2
    machine.flops(count, attention=True)
    machine.multiplies((s,), (t,), (d,), batch=(b, n), dtype=query.dtype)
    names, dtype = (query.label, key.label), query.dtype

    def scaled(name: str, dims: tuple[str, ...]) -> Tensor:
        product = machine.new(f"gradient of {name} before its scale", dims, dtype)
        return machine.copied(product, f"gradient of {name}")

    def backward(gradients: Gradients) -> list[Tensor | None]:
        del gradients
        machine.flops(count * 2, attention=True)
        machine.multiplies((s,), (d,), (t,), batch=(b, n), dtype=dtype)
        machine.multiplies((d,), (t,), (s,), batch=(b, n), dtype=dtype)
        of_query = scaled(names[0], (b, n, s, d))
        of_key = scaled(names[1], (b, n, d, t))
        return [_turned(machine, of_query, (2, 0, 1, 3)), _turned(machine, of_key, (3, 0, 1, 2))]

    machine.attach([result], [query, key], backward, saved=[query, key])
    del empty
    return result


@op("masked_softmax", kind="softmax")
def masked_softmax(machine: Machine, label: str, scores: Tensor) -> Tensor:
    """Softmax of masked scores in one kernel, in their dtype; keeps its result, and makes the gradient anew.

    T: csrc/extensions/softmax.cpp, scaled_masked_softmax_backward, since 0c8cf2c03 (2.19).
    """
    result = machine.new(label, scores.dims, scores.dtype)
    made = (f"gradient of {scores.label}", scores.dims, scores.dtype)
    machine.attach([result], [scores], lambda _: [machine.new(*made)], saved=[result])
    return result


@op("masked_softmax", "in-place", kind="softmax")
def masked_softmax_in_place(machine: Machine, label: str, scores: Tensor) -> Tensor:
    """The same, its gradient written where that of its result lies: before T 0c8cf2c03."""
    result = machine.new(label, scores.dims, scores.dtype)

    def backward(gradients: Gradients) -> list[Tensor | None]:
        gradient = gradients[0]
        assert gradient is not None
        return [machine.view(gradient, gradient.axes)]

    machine.attach([result], [scores], backward, saved=[result])
    return result


def _rows(machine: Machine, tensor: Tensor) -> Tensor:
    """An operand whose batch and heads are one axis: itself, or a copy where they do not lie so."""
    positions, batch, heads, width = tensor.axes
    if can_view(machine.predicates, [(positions,), (batch, heads), (width,)]):
        return tensor
    result = machine.copy(tensor, f"{tensor.label} copy")
    machine.attach([result], [tensor], lambda gradients: [gradients[0]])
    return result


def _turned(machine: Machine, tensor: Tensor, order: tuple[int, ...]) -> Tensor:
    return machine.view(tensor, tuple(tensor.axes[at] for at in order))
