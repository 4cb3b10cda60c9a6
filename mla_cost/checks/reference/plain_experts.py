"""The router and the rows of experts as plain torch code has them, no op of which stands for several.

Line by line docs/decisions/0021-expert-rows-op-by-op.md: its style `torchtitan` weighs rows before the experts, its
style `transformers` after them. N = u x b positions, h hidden, e experts in all, K experts per token.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import linear

SCALE = 2.5
SMALL = 1e-20


def titan_router(logits: Tensor, bias: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Logits `[u b e]` -> fp32 weights `[u b K]` and int64 chosen alike. The bias `[e]` has a say in the choice."""
    scores = logits.float().sigmoid()
    best, chosen = (scores + bias).topk(k, -1)  # as there, a name holds what is not used
    weights = scores.gather(-1, chosen)
    weights = weights / (weights.sum(-1, keepdim=True) + SMALL)
    weights = weights * SCALE
    del best
    return weights, chosen


def rows_gathered(h: Tensor, weights: Tensor, chosen: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """h `[u b h]` -> rows `[N*K h]` in the order of their experts, weights `[N*K]`, index `[N*K h]`, a view."""
    order = chosen.flatten().argsort(stable=True)
    row_weights = weights.flatten()[order]
    order = order // chosen.size(-1)
    index = order.unsqueeze(-1).expand(-1, h.size(-1))
    return h.flatten(0, -2).gather(0, index), row_weights, index


def weighed(rows: Tensor, row_weights: Tensor) -> Tensor:
    """Rows `[N*K h]` times their fp32 weights, in the rows' own dtype again."""
    return (rows.float() * row_weights.unsqueeze(-1)).to(rows.dtype)


def rows_scattered(total: Tensor, rows: Tensor, index: Tensor) -> Tensor:
    """`[u b h]` with the rows added where they came from: a new tensor."""
    return total.flatten(0, -2).scatter_add(0, index, rows).view(total.shape)


def wide_router(h: Tensor, weight: Tensor, bias: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """h `[u b h]` and the router's weight `[e h]`, both as copies in fp32 -> weights and chosen as above."""
    logits = linear(h.float(), weight.float())
    scores = logits.sigmoid()
    with torch.no_grad():
        chosen = (scores + bias).topk(k, -1)[1]
    weights = scores.gather(-1, chosen)
    denominator = weights.sum(-1, keepdim=True) + SMALL
    weights /= denominator
    weights = weights * SCALE
    del logits, denominator
    return weights, chosen


def rows_indexed(h: Tensor, weights: Tensor, chosen: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """h `[u b h]` -> rows `[N*K h]` in the order of their experts, their weights and their positions, `[N*K]` each."""
    order = chosen.flatten().argsort(stable=True)
    row_weights = weights.flatten()[order]
    positions = order // chosen.size(-1)
    return h.flatten(0, -2)[positions], row_weights, positions


def rows_added(total: Tensor, rows: Tensor, row_weights: Tensor, positions: Tensor) -> Tensor:
    """Rows of the experts `[N*K h]`, weighed in fp32, added into the fp32 zeros `[N h]` that are handed in."""
    product = rows * row_weights.unsqueeze(-1)
    total.index_add_(0, positions, product)
    return total
