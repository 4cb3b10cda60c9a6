"""Tensor parallelism with `megatron_sp`: its groups, its two exchanges, and how whole parameters are divided.

t ranks of tensor parallelism (tp) and P ranks that share a sequence (sp): rank = P's index x t + t's index, so that
ranks in order hold the positions in order. Between the regions a rank holds u = s/t of its s positions. Ranks that
share an expert (etp) follow each other in that order, and sets of them share the experts (ep); where these are more
ranks than sp x tp, they span further sets of those. Stages of a pipeline (pp) are whole such sets, one after the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from mla_cost.checks.reference.exchange import Group, all_gather, gather, reduce_scatter

# Names of the divided parameters -> the dim that is divided over tp. All others are whole on every rank, but for the
# down-projections where they are sharded.
DIVIDED = {"q_proj": 0, "q_up": 0, "kv_up": 0, "fc1": 0, "head": 0, "embedding": 0, "out_proj": 1, "fc2": 1}
DOWN = ("q_down", "kv_down")


@dataclass(frozen=True)
class ProcessGroups:
    """The process groups that one rank is part of, by axis; None where the axis has one rank."""

    sp: Group | None = None
    tp: Group | None = None
    ep: Group | None = None
    etp: Group | None = None
    pp: Group | None = None

    def check(self, sp: int, tp: int, ep: int = 1, etp: int = 1) -> None:
        """Refuse groups of other sizes."""
        asked = (("sp", self.sp, sp), ("tp", self.tp, tp), ("ep", self.ep, ep), ("etp", self.etp, etp))
        for axis, group, size in asked:
            if (group.size() if group else 1) != size:
                raise ValueError(f"{axis} {size} needs a group of that size")

    @property
    def tp_rank(self) -> int:
        return self.tp.rank() if self.tp else 0

    @property
    def sp_rank(self) -> int:
        return self.sp.rank() if self.sp else 0

    @property
    def ep_rank(self) -> int:
        return self.ep.rank() if self.ep else 0

    @property
    def etp_rank(self) -> int:
        return self.etp.rank() if self.etp else 0


def make_groups(sp: int, tp: int = 1, ep: int = 1, etp: int = 1, pp: int = 1) -> ProcessGroups:
    """Make the groups of the first sp x tp ranks (or ep x etp, if more), tp and etp fastest; of pp times as many.

    Every rank of the job must call this, in the same order. A group's description is its axis, which the recorder
    reads.
    """
    model, experts = sp * tp, ep * etp
    stage = max(model, experts)
    ranks = pp * stage
    sp_lines = [range(first + own, first + model, tp) for first in range(0, ranks, model) for own in range(tp)]
    ep_lines = [range(at + own, at + experts, etp) for at in range(0, ranks, experts) for own in range(etp)]
    return ProcessGroups(
        sp=_own_group("sp", sp_lines) if sp > 1 else None,
        tp=_own_group("tp", [range(first, first + tp) for first in range(0, ranks, tp)]) if tp > 1 else None,
        ep=_own_group("ep", ep_lines) if ep > 1 else None,
        etp=_own_group("etp", [range(first, first + etp) for first in range(0, ranks, etp)]) if etp > 1 else None,
        pp=_own_group("pp", [range(own, ranks, stage) for own in range(stage)]) if pp > 1 else None,
    )


def _own_group(axis: str, lines: Iterable[Sequence[int]]) -> Group | None:
    own = None
    for ranks in lines:
        group = dist.new_group(ranks, group_desc=axis)
        if dist.get_rank() in ranks:
            own = group
    return own


class _Scatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group) -> Tensor:
        ctx.group = group
        x = x.contiguous()
        out = x.new_empty(x.size(0) // group.size(), *x.shape[1:])
        reduce_scatter(out, x, group=group)
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        gradient = gradients[0].contiguous()
        out = gradient.new_empty(ctx.group.size() * gradient.size(0), *gradient.shape[1:])
        all_gather(out, gradient, group=ctx.group)
        return out, None


def gather_tp(x: Tensor, group: Group) -> Tensor:
    """All-gather into a tp region, `[u b h]` -> `[s b h]`; its backward is a reduce-scatter."""
    return gather(x, group)


def scatter_tp(x: Tensor, group: Group) -> Tensor:
    """Reduce-scatter out of a tp region, partial sums `[s b h]` -> `[u b h]`; its backward is an all-gather."""
    out: Tensor = _Scatter.apply(x, group)
    return out


class _JoinColumns(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group) -> Tensor:
        ctx.group = group
        x = x.contiguous()
        s, b, width = x.shape
        parts = x.new_empty(group.size(), s, b, width)
        all_gather(parts.flatten(0, 1), x, group=group)
        return parts.permute(1, 2, 0, 3).reshape(s, b, group.size() * width)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        send = gradients[0].unflatten(-1, (ctx.group.size(), -1)).permute(2, 0, 1, 3).contiguous()
        out = send.new_empty(send.shape[1:])
        reduce_scatter(out, send.flatten(0, 1), group=ctx.group)
        return out, None


def join_columns(x: Tensor, group: Group) -> Tensor:
    """All-gather of columns over tp, `[s b d/t]` -> `[s b d]`; its backward is a reduce-scatter of columns."""
    out: Tensor = _JoinColumns.apply(x, group)
    return out


def divide(name: str, whole: Tensor, tp: int, tp_rank: int, *, sharded_down: bool = False) -> Tensor:
    """One tp rank's part of the parameter of that name; all of it where it is whole on every rank."""
    module, dim = _division(name, sharded_down)
    if dim is None:
        return whole
    if module == "fc1":  # gate and up are divided alike, so that a rank has pairs of them
        return whole.unflatten(0, (2, -1)).chunk(tp, 1)[tp_rank].flatten(0, 1)
    return whole.chunk(tp, dim)[tp_rank]


def assemble(name: str, gradients: Sequence[Tensor], *, sharded_down: bool = False) -> Tensor:
    """The whole parameter's gradient from those of the tp ranks, in order.

    A whole parameter's are partial and must be summed (in training: an all-reduce over tp). Norms of the layer have
    seen u of the s positions. The attention's down-projections and norms are computed alike on every rank, but what
    comes back to them comes from the rank's own heads only.
    """
    module, dim = _division(name, sharded_down)
    if dim is None:
        return torch.stack(list(gradients)).sum(0)
    if module == "fc1":
        return torch.cat([part.unflatten(0, (2, -1)) for part in gradients], 1).flatten(0, 1)
    return torch.cat(list(gradients), dim)


def _division(name: str, sharded_down: bool) -> tuple[str, int | None]:
    """The module that holds the parameter, and the dim that is divided."""
    module = name.split(".")[-2]
    return module, 0 if sharded_down and module in DOWN else DIVIDED.get(module)
