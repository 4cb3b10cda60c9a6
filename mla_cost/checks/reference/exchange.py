"""Exchanges between the ranks that share a sequence, as autograd functions whose backward is the transpose.

Nothing is saved but the group, whose size gives every shape. P ranks, S = P s, n = P l.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

Group = dist.ProcessGroup

# torch 2.13 renamed both; the old names warn, older releases have only them.
all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


def _sequence_to_heads(x: Tensor, group: Group) -> Tensor:
    ranks = group.size()
    s, b, n, d = x.shape
    send = x.reshape(s, b, ranks, n // ranks, d).permute(2, 0, 1, 3, 4).contiguous()
    recv = torch.empty_like(send)
    dist.all_to_all_single(recv, send, group=group)
    return recv.view(ranks * s, b, n // ranks, d)


def _heads_to_sequence(x: Tensor, group: Group) -> Tensor:
    ranks = group.size()
    sequence, b, heads, d = x.shape
    send = x.contiguous()
    recv = torch.empty_like(send)
    dist.all_to_all_single(recv, send, group=group)
    parts = recv.view(ranks, sequence // ranks, b, heads, d)
    return parts.permute(1, 2, 0, 3, 4).reshape(sequence // ranks, b, ranks * heads, d)


class _HeadsOut(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group) -> Tensor:
        ctx.group = group
        return _sequence_to_heads(x, group)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return _heads_to_sequence(gradients[0], ctx.group), None


class _HeadsIn(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group) -> Tensor:
        ctx.group = group
        return _heads_to_sequence(x, group)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return _sequence_to_heads(gradients[0], ctx.group), None


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group) -> Tensor:
        ctx.group = group
        x = x.contiguous()
        out = x.new_empty(group.size() * x.size(0), *x.shape[1:])
        all_gather(out, x, group=group)
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        gradient = gradients[0].contiguous()
        out = gradient.new_empty(gradient.size(0) // ctx.group.size(), *gradient.shape[1:])
        reduce_scatter(out, gradient, group=ctx.group)
        return out, None


def sequence_to_heads(x: Tensor, group: Group) -> Tensor:
    """All-to-all `[s b n d]` -> `[S b l d]`: from a slice of the sequence to a slice of the heads."""
    out: Tensor = _HeadsOut.apply(x, group)
    return out


def heads_to_sequence(x: Tensor, group: Group) -> Tensor:
    """All-to-all `[S b l d]` -> `[s b n d]`: back from a slice of the heads to a slice of the sequence."""
    out: Tensor = _HeadsIn.apply(x, group)
    return out


def gather(x: Tensor, group: Group) -> Tensor:
    """All-gather over the sequence, `[s ...]` -> `[S ...]`; its backward is a reduce-scatter."""
    out: Tensor = _Gather.apply(x, group)
    return out
