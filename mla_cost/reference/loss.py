"""Cross entropy over a vocabulary that is divided over tp: one autograd function, in place wherever torch can be.

V rows of the vocabulary on this rank, s positions, b micro-batch.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from mla_cost.reference.exchange import Group


def own_rows(tokens: Tensor, first: int, rows: int) -> tuple[Tensor, Tensor]:
    """Token ids `[s b]` -> rows of this rank's part of the vocabulary, 0 for others' tokens, and a mask of those."""
    others = (tokens < first) | (tokens >= first + rows)
    return (tokens - first).masked_fill(others, 0), others


class _CrossEntropy(torch.autograd.Function):
    """Keeps fp32 probabilities `[s b V]`. Beside them forward has one fp32 `[s b]`, which serves all three reductions.

    `minus` `[s b]` is a table: -1 where the target is among this rank's rows, else 0.
    """

    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor, minus: Tensor, group: Group | None) -> Tensor:
        probabilities = logits.to(torch.float32, copy=True)
        position = probabilities.amax(-1)
        _reduce(position, group, dist.ReduceOp.MAX)
        probabilities.sub_(position.unsqueeze(-1))
        torch.gather(probabilities, -1, targets.unsqueeze(-1), out=position.unsqueeze(-1))
        _reduce(position.mul_(minus), group)
        loss = position.mean()  # minus the target's logit, so far
        torch.sum(probabilities.exp_(), -1, out=position)
        _reduce(position, group)
        probabilities.div_(position.unsqueeze(-1))
        ctx.save_for_backward(probabilities, targets, minus)
        ctx.dtype = logits.dtype
        return loss.add_(position.log_().mean())

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        probabilities, targets, minus = ctx.saved_tensors
        probabilities.scatter_add_(-1, targets.unsqueeze(-1), minus.unsqueeze(-1))
        probabilities.mul_(gradients[0] / targets.numel())
        return probabilities.to(ctx.dtype, copy=True), None, None, None


def _reduce(position: Tensor, group: Group | None, op: Any = dist.ReduceOp.SUM) -> None:
    if group:
        dist.all_reduce(position, op, group=group)


def cross_entropy(logits: Tensor, targets: Tensor, minus: Tensor, group: Group | None = None) -> Tensor:
    """Logits `[s b V]`, targets `[s b]` as rows of this rank -> the fp32 mean over the s x b positions, a scalar.

    minus  `[s b]` fp32: -1 where the target is among this rank's rows, else 0.
    group  the tp ranks among which the vocabulary is divided; None where one rank has all of it.
    """
    loss: Tensor = _CrossEntropy.apply(logits, targets, minus, group)
    return loss
