"""Fused attention: stand-ins that save exactly what a fused kernel saves, and torch's own where it is really fused.

A stand-in is one op for the dispatcher. On real tensors it computes the plain maths inside that op, so outputs and
gradients are right; on fake tensors only its stated results exist. What it saves is stated here, not observed:
checks against it hold `by construction`.

`first` is the position of the first query among the keys where attention is causal, None where it is not.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from mla_cost.checks.reference.opaque import opaque_op

NPU_LANES = 8  # each softmax statistic of Ascend's kernel is stored 8 fp32 wide
ARGUMENTS = "Tensor q, Tensor key, Tensor value, float scale, int? first"
BACKENDS = {"flash": SDPBackend.FLASH_ATTENTION, "mem-efficient": SDPBackend.EFFICIENT_ATTENTION}


def _letters(q: Tensor, key: Tensor) -> str:
    return "tbnd" if key.dim() == q.dim() else "tbd"


def _scores(q: Tensor, key: Tensor, scale: float, first: int | None) -> Tensor:
    """Fp32 scores `[b n S T]`, causal where the position of the first query is given."""
    scores = torch.einsum(f"sbnd,{_letters(q, key)}->bnst", q.float(), key.float()) * scale
    if first is not None:
        scores = scores.masked_fill(torch.ones_like(scores[0, 0], dtype=torch.bool).triu(1 + first), -torch.inf)
    return scores


def _output(scores: Tensor, value: Tensor, dtype: torch.dtype) -> Tensor:
    out = torch.einsum(f"bnst,{_letters(scores, value)}->sbnd", scores.softmax(-1), value.float())
    return out.to(dtype).contiguous()


def _out_like(q: Tensor, value: Tensor) -> Tensor:
    return q.new_empty(*q.shape[:-1], value.size(-1))


def _statistic_shape(q: Tensor) -> tuple[int, int, int]:
    s, b, n, _ = q.shape
    return b, n, s


def _flash_results(q: Tensor, key: Tensor, value: Tensor, scale: float, first: int | None) -> tuple[Tensor, Tensor]:
    return _out_like(q, value), q.new_empty(_statistic_shape(q), dtype=torch.float32)


@opaque_op(f"flash_attention({ARGUMENTS}) -> (Tensor, Tensor)", _flash_results)
def flash_forward(q: Tensor, key: Tensor, value: Tensor, scale: float, first: int | None) -> tuple[Tensor, Tensor]:
    """Return out `[S b l d_v]`, contiguous, and the fp32 log-sum-exp `[b l S]`."""
    scores = _scores(q, key, scale, first)
    return _output(scores, value, q.dtype), scores.logsumexp(-1)


def _npu_results(
    q: Tensor, key: Tensor, value: Tensor, scale: float, first: int | None
) -> tuple[Tensor, Tensor, Tensor]:
    shape = (*_statistic_shape(q), NPU_LANES)
    largest, total = (q.new_empty(shape, dtype=torch.float32) for _ in range(2))
    return _out_like(q, value), largest, total


@opaque_op(f"npu_fusion_attention({ARGUMENTS}) -> (Tensor, Tensor, Tensor)", _npu_results)
def npu_forward(
    q: Tensor, key: Tensor, value: Tensor, scale: float, first: int | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Return out `[S b l d_v]`, contiguous, and fp32 softmax max and sum, each `[b l S 8]`."""
    scores = _scores(q, key, scale, first)
    largest = scores.amax(-1, keepdim=True)
    total = (scores - largest).exp().sum(-1, keepdim=True)
    wide = (1, 1, 1, NPU_LANES)
    return _output(scores, value, q.dtype), largest.repeat(wide), total.repeat(wide)


def _backward_results(
    gradient: Tensor, q: Tensor, key: Tensor, value: Tensor, scale: float, first: int | None
) -> tuple[Tensor, Tensor, Tensor]:
    return q.new_empty(q.shape), key.new_empty(key.shape), value.new_empty(value.shape)


@opaque_op(f"fused_attention_backward(Tensor gradient, {ARGUMENTS}) -> (Tensor, Tensor, Tensor)", _backward_results)
def fused_backward(
    gradient: Tensor, q: Tensor, key: Tensor, value: Tensor, scale: float, first: int | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q, key and value, contiguous. The maths is run again instead of read from the statistics."""
    letters = _letters(q, key)
    upstream = gradient.float()
    probs = _scores(q, key, scale, first).softmax(-1)
    dprobs = torch.einsum(f"sbnd,{letters}->bnst", upstream, value.float())
    dscores = probs * (dprobs - (dprobs * probs).sum(-1, keepdim=True)) * scale
    dq = torch.einsum(f"bnst,{letters}->sbnd", dscores, key.float())
    dk = torch.einsum(f"bnst,sbnd->{letters}", dscores, q.float())
    dv = torch.einsum(f"bnst,sbnd->{letters}", probs, upstream)
    return dq.to(q.dtype).contiguous(), dk.to(q.dtype).contiguous(), dv.to(q.dtype).contiguous()


class _StandIn(torch.autograd.Function):
    """Saves q, key, value, the output and the row statistics; backward allocates dq, dk and dv, in this order."""

    @staticmethod
    def forward(ctx: Any, op: Any, q: Tensor, key: Tensor, value: Tensor, scale: float, first: int | None) -> Tensor:
        out: Tensor
        out, *statistics = op(q, key, value, scale, first)
        ctx.save_for_backward(q, key, value, out, *statistics)
        ctx.scale, ctx.first = scale, first
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        q, key, value, *_ = ctx.saved_tensors
        dq, dk, dv = fused_backward(gradients[0], q, key, value, ctx.scale, ctx.first)
        return None, dq, dk, dv, None, None


def flash_attention(q: Tensor, key: Tensor, value: Tensor, scale: float, first: int | None) -> Tensor:
    """`[S b l d]` three times -> `[S b l d_v]`, saving what FlashAttention saves."""
    if key.dim() < q.dim():
        raise ValueError("flash does not accept a key that the heads share")
    out: Tensor = _StandIn.apply(flash_forward, q, key, value, scale, first)
    return out


def npu_fusion_attention(q: Tensor, key: Tensor, value: Tensor, scale: float, first: int | None) -> Tensor:
    """`[S b l d]` three times (or a shared key `[S b d]`) -> `[S b l d_v]`, saving what Ascend's kernel saves."""
    out: Tensor = _StandIn.apply(npu_forward, q, key, value, scale, first)
    return out


def sdpa(q: Tensor, key: Tensor, value: Tensor, scale: float, first: int | None, kernel: str) -> Tensor:
    """Torch's own fused attention on `[S b l d]`; raises where torch would not select the fused backend."""
    if first:
        raise ValueError("torch's scaled_dot_product_attention has no causal mask for queries that start later")
    q, key, value = (tensor.permute(1, 2, 0, 3) for tensor in (q, key, value))
    with sdpa_kernel(BACKENDS[kernel]):
        out = nn.functional.scaled_dot_product_attention(q, key, value, is_causal=first == 0, scale=scale)
    return out.permute(2, 0, 1, 3)
