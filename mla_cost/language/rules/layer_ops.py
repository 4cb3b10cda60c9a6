"""Ops that only layers have: regions of tensor parallelism, MLP, experts, the ends, what Transformer Engine fuses."""

from __future__ import annotations

from mla_cost.language.rules import Call, Rule, Tensors, elementwise, exchange, experts, mixer, needed, readable
from mla_cost.language.rules import transformer_engine as te
from mla_cost.language.rules.activation import silu, times
from mla_cost.language.rules.context_parallel import gathered_attention, ring_attention
from mla_cost.language.rules.norm import norm
from mla_cost.language.rules.vocabulary import (
    chunked_loss,
    cross_entropy,
    cross_entropy_overwriting,
    embedding,
    log_softmax_loss,
    total_loss,
)


def _tp_gather(call: Call, given: Tensors) -> Tensors:
    return [exchange.gather(call.machine, call.label, given[0], exchange.TENSOR)]


def _tp_scatter(call: Call, given: Tensors) -> Tensors:
    return [exchange.scatter(call.machine, call.label, given[0], exchange.TENSOR)]


def _join_columns(call: Call, given: Tensors) -> Tensors:
    return [exchange.join_columns(call.machine, call.label, given[0], needed(call.results[0]))]


def _etp_gather(call: Call, given: Tensors) -> Tensors:
    return [exchange.gather(call.machine, call.label, given[0], exchange.EXPERT_TENSOR)]


def _etp_scatter(call: Call, given: Tensors) -> Tensors:
    return [exchange.scatter(call.machine, call.label, given[0], exchange.EXPERT_TENSOR)]


def _add(call: Call, given: Tensors) -> Tensors:
    return [elementwise.add(call.machine, call.label, given[0], given[1])]


def _other_mixer(call: Call, given: Tensors) -> Tensors:
    return [mixer.other_mixer(call.machine, call.label, given[0])]


def _with_indexer(call: Call, given: Tensors) -> Tensors:
    return [mixer.with_indexer(call.machine, given[0])]


def _silu(call: Call, given: Tensors) -> Tensors:
    return [silu(call.machine, call.label, given[0])]


def _times(call: Call, given: Tensors) -> Tensors:
    return [times(call.machine, call.label, given[0], given[1])]


def _embedding(call: Call, given: Tensors) -> Tensors:
    return [embedding(call.machine, call.label, given[0])]


def _total_loss(call: Call, given: Tensors) -> Tensors:
    return [total_loss(call.machine, call.label, given)]


def _cross_entropy(call: Call, given: Tensors) -> Tensors:
    return [cross_entropy(call.machine, call.label, given[0])]


def _log_softmax_loss(call: Call, given: Tensors) -> Tensors:
    return [log_softmax_loss(call.machine, call.label, given[0])]


def _to_fp32(call: Call, given: Tensors) -> Tensors:
    return [elementwise.cast(call.machine, call.label, given[0], "fp32")]


def _cross_entropy_overwriting(call: Call, given: Tensors) -> Tensors:
    return [cross_entropy_overwriting(call.machine, call.label, given[0])]


def _chunked_loss(call: Call, given: Tensors) -> Tensors:
    return [chunked_loss(call.machine, call.label, given[0], given[1])]


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


def _gather_columns(call: Call, given: Tensors) -> Tensors:
    return [te.gather_columns(call.machine, call.label, given[0], needed(call.results[0]))]


def _own_rows(call: Call, given: Tensors) -> Tensors:
    return [te.own_rows(call.machine, call.label, given[0])]


def _head_linear(call: Call, given: Tensors) -> Tensors:
    return [te.head_linear(call.machine, call.label, given[0], given[1])]


def _joined_linear(call: Call, given: Tensors) -> Tensors:
    return [te.joined_linear(call.machine, call.label, given[0], given[1])]


def _grouped_rows(call: Call, given: Tensors) -> Tensors:
    return [te.grouped_rows(call.machine, call.label, given[0], given[1])]


def _rope_in_place(call: Call, given: Tensors) -> Tensors:
    return [te.rope_in_place(call.machine, call.label, given[0])]


def _rope_keys_values(call: Call, given: Tensors) -> Tensors:
    parts = tuple((readable(result.name), needed(result)) for result in call.results)
    return te.rope_keys_values(call.machine, parts, given[0], given[1])


def _rope_with_tables(call: Call, given: Tensors) -> Tensors:
    return [te.rope_with_tables(call.machine, call.label, given[0])]


def _swiglu(call: Call, given: Tensors) -> Tensors:
    return [te.swiglu(call.machine, call.label, given[0], needed(call.results[0]))]


def _weighted_swiglu(call: Call, given: Tensors) -> Tensors:
    return [te.weighted_swiglu(call.machine, call.label, given[0], given[1], needed(call.results[0]))]


def _route(call: Call, given: Tensors) -> Tensors:
    return [te.route(call.machine, call.label, given[0], given[1])]


def _rows_of(call: Call, given: Tensors) -> Tensors:
    return te.permute(call.machine, call.label, given[0], given[1])


def _tokens_of(call: Call, given: Tensors) -> Tensors:
    return [te.unpermute(call.machine, call.label, given[0], given[1])]


def _sort_rows(call: Call, given: Tensors) -> Tensors:
    return te.sort_rows(call.machine, call.label, given)


def _add_in_place(call: Call, given: Tensors) -> Tensors:
    return [te.add_in_place(call.machine, call.label, given[0], given[1])]


def _sum_in_fp32(call: Call, given: Tensors) -> Tensors:
    return [te.sum_in_fp32(call.machine, call.label, given.pop())]


def _rows_to_experts(call: Call, given: Tensors) -> Tensors:
    return [te.rows_to_experts(call.machine, call.label, given[0])]


def _rows_from_experts(call: Call, given: Tensors) -> Tensors:
    return [te.rows_from_experts(call.machine, call.label, given[0])]


def _deepep_dispatch(call: Call, given: Tensors) -> Tensors:
    return te.deepep_dispatch(call.machine, call.label, given[0], given[1])


def _deepep_combine(call: Call, given: Tensors) -> Tensors:
    return [te.deepep_combine(call.machine, call.label, given[0])]


def _hybridep_dispatch(call: Call, given: Tensors) -> Tensors:
    return te.hybridep_dispatch(call.machine, call.label, given[0], given[1])


def _hybridep_combine(call: Call, given: Tensors) -> Tensors:
    """The operands after the first are the handle."""
    return [te.hybridep_combine(call.machine, call.label, given[0], given[1:])]


def _ring_attention(call: Call, given: Tensors) -> Tensors:
    return [ring_attention(call.machine, call.label, given[0], given[1], given[2])]


def _gathered_attention(call: Call, given: Tensors) -> Tensors:
    return [gathered_attention(call.machine, call.label, given[0], given[1], given[2])]


def _cross_entropy_compiled(call: Call, given: Tensors) -> Tensors:
    return [te.cross_entropy_compiled(call.machine, call.label, given[0])]


def _cross_entropy_in_place(call: Call, given: Tensors) -> Tensors:
    return [te.cross_entropy_in_place(call.machine, call.label, given[0])]


def _cross_entropy_fp32(call: Call, given: Tensors) -> Tensors:
    return [te.cross_entropy_fp32(call.machine, call.label, given[0])]


LAYER_RULES: dict[str, Rule] = {
    "router": _router,
    "permute_rows": _permute_rows,
    "unpermute_rows": _unpermute_rows,
    "to_experts": _to_experts,
    "from_experts": _from_experts,
    "reorder": _reorder,
    "grouped_linear": _grouped_linear,
    "tp_gather": _tp_gather,
    "tp_scatter": _tp_scatter,
    "join_columns": _join_columns,
    "etp_gather": _etp_gather,
    "etp_scatter": _etp_scatter,
    "add": _add,
    "other_mixer": _other_mixer,
    "with_indexer": _with_indexer,
    "silu": _silu,
    "times": _times,
    "embedding": _embedding,
    "cross_entropy": _cross_entropy,
    "cross_entropy_overwriting": _cross_entropy_overwriting,
    "log_softmax_loss": _log_softmax_loss,
    "to_fp32": _to_fp32,
    "chunked_loss": _chunked_loss,
    "total_loss": _total_loss,
    "remade": _remade,
    "fused_norm": _fused_norm,
    "column_linear": _column_linear,
    "norm_linear": _norm_linear,
    "whole_linear": _whole_linear,
    "row_linear": _row_linear,
    "gather_columns": _gather_columns,
    "own_rows": _own_rows,
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
    "add_in_place": _add_in_place,
    "sum_in_fp32": _sum_in_fp32,
    "rows_to_experts": _rows_to_experts,
    "rows_from_experts": _rows_from_experts,
    "deepep_dispatch": _deepep_dispatch,
    "deepep_combine": _deepep_combine,
    "hybridep_dispatch": _hybridep_dispatch,
    "hybridep_combine": _hybridep_combine,
    "cross_entropy_compiled": _cross_entropy_compiled,
    "ring_attention": _ring_attention,
    "gathered_attention": _gathered_attention,
    "cross_entropy_in_place": _cross_entropy_in_place,
    "cross_entropy_fp32": _cross_entropy_fp32,
}
