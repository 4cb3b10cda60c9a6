"""Every op of the program language and the rule that runs it. One file per op family holds all that is known of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from mla_cost.engine import Machine, Tensor
from mla_cost.program import Result
from mla_cost.rules import elementwise, exchange, experts, split
from mla_cost.rules import transformer_engine as te
from mla_cost.rules.activation import silu, times
from mla_cost.rules.attention import Kept, fused_attention
from mla_cost.rules.einsum import einsum
from mla_cost.rules.matmul import linear
from mla_cost.rules.norm import composite_norm, norm
from mla_cost.rules.rope import rope
from mla_cost.rules.softmax import softmax
from mla_cost.rules.vocabulary import cross_entropy, embedding


class Call(NamedTuple):
    """One op with its operands. label: what its first result is called in tables."""

    machine: Machine
    results: tuple[Result, ...]
    words: tuple[str, ...]
    settings: Mapping[str, str]

    @property
    def label(self) -> str:
        """The first result's name, readable."""
        return readable(self.results[0].name)


def readable(name: str) -> str:
    """A variable's name as tables print it."""
    return name.replace("_", " ")


Tensors = list[Tensor]
Rule = Callable[[Call, Tensors], Tensors]


def _linear(call: Call, given: Tensors) -> Tensors:
    return [linear(call.machine, call.label, given[0], given[1])]


def _norm(call: Call, given: Tensors) -> Tensors:
    rule = composite_norm if call.settings["norm"] == "composite" else norm
    return [rule(call.machine, call.label, given[0], given[1])]


def _rope(call: Call, given: Tensors) -> Tensors:
    return [rope(call.machine, call.label, given[0])]


def _split(call: Call, given: Tensors) -> Tensors:
    parts = [(readable(result.name), _needed(result)) for result in call.results]
    return split.split(call.machine, given[0], parts)


def _concat(call: Call, given: Tensors) -> Tensors:
    dim = "+".join(tensor.dims[-1] for tensor in given)
    return [split.concat(call.machine, call.label, given, dim)]


def _expand(call: Call, given: Tensors) -> Tensors:
    """One row for every head that the second operand has."""
    return [split.expand(call.machine, call.label, given[0], 2, given[1].dims[2])]


def _copied(call: Call, given: Tensors) -> Tensors:
    return [split.contiguous(call.machine, call.label, given[0])]


def _slice(call: Call, given: Tensors) -> Tensors:
    tensor = given[0]
    return [split.narrow(call.machine, call.label, tensor, len(tensor.axes) - 1, _needed(call.results[0]))]


def _pad(call: Call, given: Tensors) -> Tensors:
    """Filled up to the width of the second operand."""
    return [split.pad(call.machine, call.label, given[0], given[1].dims[-1])]


def _like_value(call: Call, given: Tensors) -> Tensors:
    """Cut back to the width of the second operand."""
    tensor = given[0]
    return [split.narrow(call.machine, call.label, tensor, len(tensor.axes) - 1, given[1].dims[-1])]


def _scale(call: Call, given: Tensors) -> Tensors:
    return [elementwise.multiply(call.machine, call.label, given[0])]


def _mask(call: Call, given: Tensors) -> Tensors:
    return [elementwise.mask(call.machine, call.label, given[0])]


def _softmax(call: Call, given: Tensors) -> Tensors:
    wanted = call.settings["softmax_dtype"]
    return [softmax(call.machine, call.label, given[0], given[0].dtype if wanted == "activation" else wanted)]


def _einsum(call: Call, given: Tensors) -> Tensors:
    equation, *rest = call.words
    return [einsum(call.machine, call.label, equation, given[0], given[1], attention="attention" in rest)]


def _permute(call: Call, given: Tensors) -> Tensors:
    """The view that brings the axes named by the word into the order s b n d."""
    letters = call.words[0]
    tensor = given[0]
    axes = tuple(tensor.axes[letters.index(letter)] for letter in "sbnd")
    view = call.machine.view(tensor, axes)
    back = tuple("sbnd".index(letter) for letter in letters)
    call.machine.attach([view], [tensor], lambda grads: [_reordered(call.machine, grads[0], back)])
    return [view]


def _reordered(machine: Machine, gradient: Tensor | None, order: tuple[int, ...]) -> Tensor:
    assert gradient is not None
    return machine.view(gradient, tuple(gradient.axes[at] for at in order))


def _fused(call: Call, given: Tensors) -> Tensors:
    query, key, value = given
    letters = dict(zip("sbnd", query.dims, strict=True)) | {"8": "8"}
    kept = [_kept(word[5:], letters) for word in call.words if word.startswith("keep ")]
    return [fused_attention(call.machine, call.label, query, key, value, kept)]


def _kept(text: str, letters: Mapping[str, str]) -> Kept:
    label, _, layout = text.partition(": ")
    dtype, _, dims = layout.partition(" ")
    return Kept(label, dtype, tuple(letters[letter] for letter in dims))


def _heads_out(call: Call, given: Tensors) -> Tensors:
    return [exchange.heads_out(call.machine, call.label, given[0])]


def _heads_in(call: Call, given: Tensors) -> Tensors:
    return [exchange.heads_in(call.machine, call.label, given[0])]


def _gather(call: Call, given: Tensors) -> Tensors:
    return [exchange.gather(call.machine, call.label, given[0])]


def _tp_gather(call: Call, given: Tensors) -> Tensors:
    return [exchange.gather(call.machine, call.label, given[0], exchange.TENSOR)]


def _tp_scatter(call: Call, given: Tensors) -> Tensors:
    return [exchange.scatter(call.machine, call.label, given[0], exchange.TENSOR)]


def _add(call: Call, given: Tensors) -> Tensors:
    return [elementwise.add(call.machine, call.label, given[0], given[1])]


def _silu(call: Call, given: Tensors) -> Tensors:
    return [silu(call.machine, call.label, given[0])]


def _times(call: Call, given: Tensors) -> Tensors:
    return [times(call.machine, call.label, given[0], given[1])]


def _embedding(call: Call, given: Tensors) -> Tensors:
    return [embedding(call.machine, call.label, given[0])]


def _cross_entropy(call: Call, given: Tensors) -> Tensors:
    return [cross_entropy(call.machine, call.label, given[0])]


def _router(call: Call, given: Tensors) -> Tensors:
    return list(experts.router(call.machine, call.label, given[0]))


def _permute_rows(call: Call, given: Tensors) -> Tensors:
    """The second operand is the choice: a table."""
    return [experts.permute(call.machine, call.label, given[0])]


def _unpermute_rows(call: Call, given: Tensors) -> Tensors:
    """The third operand is the choice: a table."""
    return [experts.unpermute(call.machine, call.label, given[0], given[1])]


def _to_experts(call: Call, given: Tensors) -> Tensors:
    return [experts.to_experts(call.machine, call.label, given[0])]


def _from_experts(call: Call, given: Tensors) -> Tensors:
    return [experts.from_experts(call.machine, call.label, given[0])]


def _reorder(call: Call, given: Tensors) -> Tensors:
    return [experts.reorder(call.machine, call.label, given[0])]


def _grouped_linear(call: Call, given: Tensors) -> Tensors:
    return [experts.grouped_linear(call.machine, call.label, given[0], given[1])]


def _own_heads(call: Call, given: Tensors) -> Tensors:
    """This rank's rows of a weight."""
    return [split.narrow(call.machine, given[0].label, given[0], given[0].position("n"), "l")]


# ---- what Megatron-Core and Transformer Engine run


def _fused_norm(call: Call, given: Tensors) -> Tensors:
    return [norm(call.machine, call.label, given[0], given[1])]


def _remade(call: Call, given: Tensors) -> Tensors:
    """The first operand, before whose backward the second is made again where a checkpoint discarded it."""
    return [call.machine.remade(given[0], given[1])]


def _column_linear(call: Call, given: Tensors) -> Tensors:
    return [te.column_linear(call.machine, call.label, given[0], given[1])]


def _norm_linear(call: Call, given: Tensors) -> Tensors:
    return [te.norm_linear(call.machine, call.label, given[0], given[1], given[2])]


def _whole_linear(call: Call, given: Tensors) -> Tensors:
    return [te.whole_linear(call.machine, call.label, given[0], given[1])]


def _row_linear(call: Call, given: Tensors) -> Tensors:
    return [te.row_linear(call.machine, call.label, given[0], given[1])]


def _head_linear(call: Call, given: Tensors) -> Tensors:
    return [te.head_linear(call.machine, call.label, given[0], given[1])]


def _joined_linear(call: Call, given: Tensors) -> Tensors:
    return [te.joined_linear(call.machine, call.label, given[0], given[1])]


def _grouped_rows(call: Call, given: Tensors) -> Tensors:
    return [te.grouped_rows(call.machine, call.label, given[0], given[1])]


def _rope_in_place(call: Call, given: Tensors) -> Tensors:
    return [te.rope_in_place(call.machine, call.label, given[0])]


def _rope_keys_values(call: Call, given: Tensors) -> Tensors:
    parts = tuple((readable(result.name), _needed(result)) for result in call.results)
    return te.rope_keys_values(call.machine, parts, given[0], given[1])


def _rope_with_tables(call: Call, given: Tensors) -> Tensors:
    return [te.rope_with_tables(call.machine, call.label, given[0])]


def _swiglu(call: Call, given: Tensors) -> Tensors:
    return [te.swiglu(call.machine, call.label, given[0], _needed(call.results[0]))]


def _weighted_swiglu(call: Call, given: Tensors) -> Tensors:
    return [te.weighted_swiglu(call.machine, call.label, given[0], given[1], _needed(call.results[0]))]


def _route(call: Call, given: Tensors) -> Tensors:
    return [te.route(call.machine, call.label, given[0], given[1])]


def _rows_of(call: Call, given: Tensors) -> Tensors:
    return te.permute(call.machine, call.label, given[0], given[1])


def _tokens_of(call: Call, given: Tensors) -> Tensors:
    return [te.unpermute(call.machine, call.label, given[0], given[1])]


def _sort_rows(call: Call, given: Tensors) -> Tensors:
    return te.sort_rows(call.machine, call.label, given)


def _rows_to_experts(call: Call, given: Tensors) -> Tensors:
    return [te.rows_to_experts(call.machine, call.label, given[0])]


def _rows_from_experts(call: Call, given: Tensors) -> Tensors:
    return [te.rows_from_experts(call.machine, call.label, given[0])]


def _deepep_dispatch(call: Call, given: Tensors) -> Tensors:
    return te.deepep_dispatch(call.machine, call.label, given[0], given[1])


def _deepep_combine(call: Call, given: Tensors) -> Tensors:
    return [te.deepep_combine(call.machine, call.label, given[0])]


def _cross_entropy_in_place(call: Call, given: Tensors) -> Tensors:
    return [te.cross_entropy_in_place(call.machine, call.label, given[0])]


def _cross_entropy_fp32(call: Call, given: Tensors) -> Tensors:
    return [te.cross_entropy_fp32(call.machine, call.label, given[0])]


def _needed(result: Result) -> str:
    if result.dim is None:
        raise ValueError(f"{result.name} needs its dim, as in {result.name}[d]")
    return result.dim


RULES: dict[str, Rule] = {
    "linear": _linear,
    "norm": _norm,
    "rope": _rope,
    "split": _split,
    "concat": _concat,
    "expand": _expand,
    "contiguous": _copied,
    "slice": _slice,
    "pad": _pad,
    "cut": _like_value,
    "scale": _scale,
    "mask": _mask,
    "softmax": _softmax,
    "einsum": _einsum,
    "permute": _permute,
    "fused": _fused,
    "heads_out": _heads_out,
    "heads_in": _heads_in,
    "gather": _gather,
    "own_heads": _own_heads,
    "router": _router,
    "permute_rows": _permute_rows,
    "unpermute_rows": _unpermute_rows,
    "to_experts": _to_experts,
    "from_experts": _from_experts,
    "reorder": _reorder,
    "grouped_linear": _grouped_linear,
    "tp_gather": _tp_gather,
    "tp_scatter": _tp_scatter,
    "add": _add,
    "silu": _silu,
    "times": _times,
    "embedding": _embedding,
    "cross_entropy": _cross_entropy,
    "remade": _remade,
    "fused_norm": _fused_norm,
    "column_linear": _column_linear,
    "norm_linear": _norm_linear,
    "whole_linear": _whole_linear,
    "row_linear": _row_linear,
    "head_linear": _head_linear,
    "joined_linear": _joined_linear,
    "grouped_rows": _grouped_rows,
    "rope_in_place": _rope_in_place,
    "rope_keys_values": _rope_keys_values,
    "rope_with_tables": _rope_with_tables,
    "swiglu": _swiglu,
    "weighted_swiglu": _weighted_swiglu,
    "route": _route,
    "rows_of": _rows_of,
    "tokens_of": _tokens_of,
    "sort_rows": _sort_rows,
    "rows_to_experts": _rows_to_experts,
    "rows_from_experts": _rows_from_experts,
    "deepep_dispatch": _deepep_dispatch,
    "deepep_combine": _deepep_combine,
    "cross_entropy_in_place": _cross_entropy_in_place,
    "cross_entropy_fp32": _cross_entropy_fp32,
}

__all__ = ["RULES", "Call", "readable"]
