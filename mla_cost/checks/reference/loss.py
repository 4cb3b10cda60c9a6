"""Cross entropy over a vocabulary that may be divided over tp: docs/decisions/0012-losses.md.

`cross_entropy` is torch's own; where the vocabulary is divided it is torch's `loss_parallel` on this rank's part, which
needs DTensors, written out op by op. `in_place_cross_entropy` is in place wherever torch can be. `fused_cross_entropy`
stands for one kernel that writes the gradient over the logits: its ops are stated, so checks against it hold by
construction. `chunked_loss` is the head and the loss together, a chunk of positions at a time, in plain torch.

V rows of the vocabulary on this rank, s positions, b micro-batch, h hidden, q positions of a chunk.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from mla_cost.checks.reference.exchange import Group
from mla_cost.checks.reference.opaque import opaque_op


def own_rows(tokens: Tensor, first: int, rows: int) -> tuple[Tensor, Tensor]:
    """Token ids `[s b]` -> rows of this rank's part of the vocabulary, 0 for others' tokens, and a mask of those."""
    others = (tokens < first) | (tokens >= first + rows)
    return (tokens - first).masked_fill(others, 0), others


class _LossParallel(torch.autograd.Function):
    """Keeps the log-probabilities `[s b V]` in the logits' dtype. Reductions over the ranks are out of place.

    What is known of the targets, `targets` and `minus`, are tables here, where `loss_parallel` makes them on the way.
    """

    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor, minus: Tensor, group: Group) -> Tensor:
        found = _log_softmax(logits, group)
        ctx.save_for_backward(found, targets, minus)
        part = found.gather(-1, targets.unsqueeze(-1)).squeeze(-1).mul_(minus)
        return _reduced(part, group).mean()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        found, targets, minus = ctx.saved_tensors
        update, values = torch.zeros_like(found), minus.to(found.dtype)
        positions = torch.arange(targets.numel(), device=found.device)
        update.flatten(0, -2)[positions, targets.flatten()] = values.flatten()
        return (update + found.exp()) * (gradients[0] / targets.numel()), None, None, None


def _log_softmax(logits: Tensor, group: Group) -> Tensor:
    x = logits.float()
    largest = x.amax(-1, keepdim=True)
    largest = _reduced(largest, group, dist.ReduceOp.MAX)
    shifted = x - largest
    total = shifted.exp().sum(-1, keepdim=True)
    total = _reduced(total, group)
    logarithm = total.log()
    result = shifted - logarithm
    return result.to(logits.dtype)


def _reduced(part: Tensor, group: Group, op: Any = dist.ReduceOp.SUM) -> Tensor:
    whole = part.clone()
    dist.all_reduce(whole, op, group=group)
    return whole


def cross_entropy_as_given(logits: Tensor, targets: Tensor, minus: Tensor, group: Group | None = None) -> Tensor:
    """As `cross_entropy`, computed and kept in the dtype of the logits."""
    if group:
        loss: Tensor = _LossParallel.apply(logits, targets, minus, group)
        return loss
    return nn.functional.cross_entropy(logits.flatten(0, -2), targets.flatten())


def cross_entropy(logits: Tensor, targets: Tensor, minus: Tensor, group: Group | None = None) -> Tensor:
    """Logits `[s b V]`, targets `[s b]` as rows of this rank -> the fp32 mean over the s x b positions, a scalar.

    minus  `[s b]` fp32: -1 where the target is among this rank's rows, else 0.
    group  the tp ranks among which the vocabulary is divided; None where one rank has all of it.
    """
    return cross_entropy_as_given(logits.float(), targets, minus, group)


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


def in_place_cross_entropy(logits: Tensor, targets: Tensor, minus: Tensor, group: Group | None = None) -> Tensor:
    """As `cross_entropy`, with one fp32 tensor over the vocabulary."""
    loss: Tensor = _CrossEntropy.apply(logits, targets, minus, group)
    return loss


# One kernel: the gradient over the logits.


def _of_positions(logits: Tensor, *_: Any) -> Tensor:
    return logits.new_empty(logits.shape[:-1], dtype=torch.float32)


@opaque_op("row_maximum(Tensor logits) -> Tensor", _of_positions)
def row_maximum(logits: Tensor) -> Tensor:
    """The largest logit of each position, fp32 `[s b]`, over this rank's rows of the vocabulary."""
    return logits.float().amax(-1)


@opaque_op("target_logit(Tensor logits, Tensor targets, Tensor minus) -> Tensor", _of_positions)
def target_logit(logits: Tensor, targets: Tensor, minus: Tensor) -> Tensor:
    """The target's logit where this rank has it, else 0, fp32 `[s b]`."""
    return -logits.float().gather(-1, targets.unsqueeze(-1)).squeeze(-1) * minus


@opaque_op("row_sum(Tensor logits, Tensor maximum) -> Tensor", _of_positions)
def row_sum(logits: Tensor, maximum: Tensor) -> Tensor:
    """The sum of exp(logit - maximum) over this rank's rows, fp32 `[s b]`."""
    return (logits.float() - maximum.unsqueeze(-1)).exp().sum(-1)


def _nothing(*_: Any) -> None:
    return None


@opaque_op("overwrite(Tensor(a!) logits, Tensor maximum, Tensor total, Tensor targets, Tensor minus) -> ()", _nothing)
def overwrite(logits: Tensor, maximum: Tensor, total: Tensor, targets: Tensor, minus: Tensor) -> None:
    """The gradient of the mean loss over the logits it comes from."""
    probabilities = (logits.float() - maximum.unsqueeze(-1)).exp() / total.unsqueeze(-1)
    probabilities.scatter_add_(-1, targets.unsqueeze(-1), minus.unsqueeze(-1))
    logits.copy_(probabilities / targets.numel())


class _FusedCrossEntropy(torch.autograd.Function):
    """Keeps the logits' storage, which holds their gradient, and makes nothing in backward."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor, minus: Tensor, group: Group | None) -> Tensor:
        maximum = row_maximum(logits)
        _reduce(maximum, group, dist.ReduceOp.MAX)
        target = target_logit(logits, targets, minus)
        _reduce(target, group)
        total = row_sum(logits, maximum)
        _reduce(total, group)
        overwrite(logits, maximum, total, targets, minus)
        ctx.save_for_backward(logits)
        return maximum.add_(total.log_()).sub_(target).mean()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        (gradient,) = ctx.saved_tensors
        return gradient.mul_(gradients[0]), None, None, None


def fused_cross_entropy(logits: Tensor, targets: Tensor, minus: Tensor, group: Group | None = None) -> Tensor:
    """As `cross_entropy`, and the logits are gone."""
    loss: Tensor = _FusedCrossEntropy.apply(logits, targets, minus, group)
    return loss


# Head and loss together, a chunk at a time.


class _ChunkedLoss(torch.autograd.Function):
    """Keeps the gradients of the hidden states `[s b h]` and of the weight `[V h]`, both made in forward."""

    @staticmethod
    def forward(
        ctx: Any, h: Tensor, weight: Tensor, targets: Tensor, minus: Tensor, chunks: int, group: Group | None
    ) -> Tensor:
        to_h, to_weight = torch.empty_like(h), torch.zeros_like(weight)
        flat = (h.flatten(0, 1), to_h.flatten(0, 1), targets.flatten(), minus.flatten())
        loss = h.new_zeros((), dtype=torch.float32)
        for own, to_own, of_own, minus_own in zip(*(tensor.chunk(chunks) for tensor in flat), strict=True):
            loss.add_(_chunk(own, to_own, of_own, minus_own, weight, to_weight, targets.numel(), group))
        ctx.save_for_backward(to_h, to_weight)
        return loss

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        to_h, to_weight = ctx.saved_tensors
        return to_h.mul_(gradients[0]), to_weight.mul_(gradients[0]), None, None, None, None


def _chunk(
    rows: Tensor,
    to_rows: Tensor,
    targets: Tensor,
    minus: Tensor,
    weight: Tensor,
    to_weight: Tensor,
    count: int,
    group: Group | None,
) -> Tensor:
    """The part of the mean over `count` positions that these `[q h]` make; gradients go to `to_rows`, `to_weight`."""
    probabilities = (rows @ weight.T).to(torch.float32, copy=True)
    position = probabilities.amax(-1)
    _reduce(position, group, dist.ReduceOp.MAX)
    probabilities.sub_(position.unsqueeze(-1))
    torch.gather(probabilities, -1, targets.unsqueeze(-1), out=position.unsqueeze(-1))
    _reduce(position.mul_(minus), group)
    loss = position.sum()  # minus the targets' logits, so far
    torch.sum(probabilities.exp_(), -1, out=position)
    _reduce(position, group)
    probabilities.div_(position.unsqueeze(-1)).scatter_add_(-1, targets.unsqueeze(-1), minus.unsqueeze(-1))
    gradient = probabilities.div_(count).to(weight.dtype, copy=True)
    torch.mm(gradient, weight, out=to_rows)
    to_weight.addmm_(gradient.T, rows)
    return loss.add_(position.log_().sum()).div_(count)


def chunked_loss(
    h: Tensor, weight: Tensor, targets: Tensor, minus: Tensor, chunks: int, group: Group | None = None
) -> Tensor:
    """Hidden states `[s b h]` and this rank's rows of the head's weight `[V h]` -> the loss of `cross_entropy`."""
    loss: Tensor = _ChunkedLoss.apply(h, weight, targets, minus, chunks, group)
    return loss


LOSSES = {
    "native": cross_entropy,
    "no-upcast": cross_entropy_as_given,
    "in-place": in_place_cross_entropy,
    "fused": fused_cross_entropy,
}
