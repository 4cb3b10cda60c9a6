"""Routed experts: a router, rows permuted to their experts and exchanged over ep, two grouped products, and back.

Line by line `Experts` is `experts` of docs/decisions/0008-the-expert-layer-style.md. Each op of the page is one op for
the dispatcher. On real tensors it computes the plain maths inside that op, so outputs and gradients are right; on fake
tensors only its stated results exist. What an op allocates and keeps is stated here, not observed: checks against it
hold `by construction`.

u positions, b micro-batch, h hidden, e experts in all, E ranks that share them (ep), c = e / E on this rank, K experts
per token, T ranks that share each expert (etp), g width of an expert on one of them, R rows that reach this rank over
ep. How many rows go where are ints of the host: counted from the choice on real tensors, as even as can be where
nothing is exchanged (fake tensors, fake groups).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.flop_counter import register_flop_formula

from mla_cost.checks.reference.exchange import Group, all_gather, reduce_scatter
from mla_cost.checks.reference.forms import Linear
from mla_cost.checks.reference.opaque import opaque_op
from mla_cost.checks.reference.plain_experts import (
    rows_added,
    rows_gathered,
    rows_indexed,
    titan_router,
    weighed,
    wide_router,
)
from mla_cost.checks.reference.spec import DTYPES, Spec

Counts = list[int]


# Where rows go.


@dataclass(frozen=True)
class Routing:
    """Rows that one rank sends to each of the e experts, and receives from each rank for each of its own c.

    received  E x c counts, those from one rank together, of each of the T ranks that share an expert in turn.
    ranks     the E ranks that share the experts.
    own       which of the T ranks this one is.
    """

    sent: Counts
    received: Counts
    ranks: int
    split: int = 1
    own: int = 0

    @property
    def sources(self) -> int:
        """The ranks whose rows are here: E x T."""
        return self.ranks * self.split

    @property
    def sent_to(self) -> Counts:
        """Rows for each of the E ranks."""
        return _sums(self.sent, self.ranks)

    @property
    def received_from(self) -> Counts:
        """Rows of each of the E ranks."""
        every = _sums(self.received, self.sources)
        return every[self.own * self.ranks : (self.own + 1) * self.ranks]

    @property
    def gathered_from(self) -> Counts:
        """Rows of each of the T ranks that share an expert."""
        return _sums(self.received, self.split)

    @property
    def per_expert(self) -> Counts:
        """Rows of each of the c experts."""
        own = len(self.received) // self.sources
        return [sum(self.received[expert::own]) for expert in range(own)]


def _sums(counts: Counts, parts: int) -> Counts:
    size = len(counts) // parts
    return [sum(counts[part * size : (part + 1) * size]) for part in range(parts)]


def _even(total: int, parts: int) -> Counts:
    return [total // parts + (part < total % parts) for part in range(parts)]


def _even_rows(chosen: Tensor, experts: int, ep: str, etp: str) -> tuple[Counts, Counts]:
    split = _group(etp).size() if etp else 1
    return _even(chosen.numel(), experts), _even(chosen.numel(), experts) * split


@opaque_op("routed_rows(Tensor chosen, int experts, str ep, str etp) -> (int[], int[])", _even_rows)
def routed_rows(chosen: Tensor, experts: int, ep: str, etp: str) -> tuple[Counts, Counts]:
    """Choice `[u b K]` -> rows sent to each expert, and rows received: ints, so no allocation and no payload.

    The ranks tell each other their counts inside this op, where the recorder does not look: the page has no such
    exchange, and a trainer that drops tokens or pads has none.
    """
    if (ep or etp) and dist.get_backend(_group(ep or etp)) == "fake":
        return _even_rows(chosen, experts, ep, etp)
    sent = torch.bincount(chosen.flatten(), minlength=experts)
    received = sent
    if ep:
        received = torch.empty_like(sent)
        dist.all_to_all_single(received, sent, group=_group(ep))
    if etp:
        received = _of_all(received, _group(etp))
    return sent.tolist(), received.tolist()


def _of_all(counts: Tensor, group: Group) -> Tensor:
    found = counts.new_empty(group.size() * counts.numel())
    all_gather(found, counts, group=group)
    return found


def _group(name: str) -> Group:
    return dist.distributed_c10d._resolve_process_group(name)  # type: ignore[attr-defined,arg-type]


def route(chosen: Tensor, experts: int, ep: Group | None, etp: Group | None = None) -> Routing:
    """How many rows of the choice `[u b K]` go where, over the ep and etp groups; None where an axis has one rank."""
    sent, received = routed_rows(chosen, experts, *(group.group_name if group else "" for group in (ep, etp)))
    ranks, split = (group.size() if group else 1 for group in (ep, etp))
    return Routing(sent, received, ranks, split, etp.rank() if etp else 0)


# The router.


def _router_results(logits: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
    scores = logits.new_empty(logits.shape, dtype=torch.float32)
    weights, chosen = (logits.new_empty(*logits.shape[:-1], k, dtype=dtype) for dtype in (torch.float32, torch.int64))
    return scores, weights, chosen


@opaque_op("router(Tensor logits, int k) -> (Tensor, Tensor, Tensor)", _router_results)
def router_forward(logits: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
    """Logits `[u b e]` -> fp32 sigmoid scores alike, fp32 weights `[u b K]` that sum to 1, int64 chosen `[u b K]`."""
    scores = logits.float().sigmoid()
    best, chosen = scores.topk(k, -1)
    return scores, best / best.sum(-1, keepdim=True), chosen


def _router_gradient(gradient: Tensor, scores: Tensor, weights: Tensor, chosen: Tensor, dtype: torch.dtype) -> Tensor:
    return scores.new_empty(scores.shape, dtype=dtype)


@opaque_op(
    "router_backward(Tensor gradient, Tensor scores, Tensor weights, Tensor chosen, ScalarType dtype) -> Tensor",
    _router_gradient,
)
def router_backward(gradient: Tensor, scores: Tensor, weights: Tensor, chosen: Tensor, dtype: torch.dtype) -> Tensor:
    """Gradient of the weights `[u b K]` -> gradient of the logits `[u b e]` in the activation dtype."""
    best = scores.gather(-1, chosen)
    to_best = (gradient - (gradient * weights).sum(-1, keepdim=True)) / best.sum(-1, keepdim=True)
    return torch.zeros_like(scores).scatter_(-1, chosen, to_best * best * (1 - best)).to(dtype)


class _Router(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, k: int) -> tuple[Tensor, Tensor]:
        scores, weights, chosen = router_forward(logits, k)
        ctx.save_for_backward(scores, weights, chosen)
        ctx.mark_non_differentiable(chosen)
        ctx.set_materialize_grads(False)  # else the choice is handed a gradient of zeros
        ctx.dtype = logits.dtype
        return weights, chosen

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return router_backward(gradients[0], *ctx.saved_tensors, ctx.dtype), None


def router(logits: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Logits `[u b e]` -> fp32 weights `[u b K]` of the K best sigmoid scores, summing to 1, and their experts, int64.

    As DeepSeek-V3's, less its groups, its correction bias (a table) and its constant factor (part of W_fc2 here).
    """
    weights, chosen = _Router.apply(logits, k)
    return weights, chosen


# Rows to experts and back.


def _row_map(chosen: Tensor) -> tuple[Tensor, Tensor]:
    """Choices in the order of their experts, and the place of each in that order, int32 `[u b K]`."""
    order = chosen.flatten().argsort(stable=True)
    places = torch.empty_like(order, dtype=torch.int32)
    places[order] = torch.arange(order.numel(), dtype=torch.int32, device=order.device)
    return order, places.view(chosen.shape)


def _permute_results(h: Tensor, chosen: Tensor) -> tuple[Tensor, Tensor]:
    return h.new_empty(*chosen.shape, h.size(-1)), chosen.new_empty(chosen.shape, dtype=torch.int32)


@opaque_op("permute(Tensor h, Tensor chosen) -> (Tensor, Tensor)", _permute_results)
def permute_forward(h: Tensor, chosen: Tensor) -> tuple[Tensor, Tensor]:
    """`[u b h]` -> rows in the order of their experts, as `[u b K h]`, and the row map."""
    order, row_map = _row_map(chosen)
    return h.flatten(0, -2)[order // chosen.size(-1)].view(*chosen.shape, -1), row_map


def _permute_gradient(gradient: Tensor, row_map: Tensor) -> Tensor:
    return gradient.new_empty(*row_map.shape[:-1], gradient.size(-1))


@opaque_op("permute_backward(Tensor gradient, Tensor row_map) -> Tensor", _permute_gradient)
def permute_backward(gradient: Tensor, row_map: Tensor) -> Tensor:
    """Gradient of the rows `[u b K h]` -> that of the input, `[u b h]`."""
    return gradient.flatten(0, -2)[row_map].float().sum(-2).to(gradient.dtype)


class _Permute(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, h: Tensor, chosen: Tensor) -> Tensor:
        rows: Tensor
        rows, row_map = permute_forward(h, chosen)
        ctx.save_for_backward(row_map)
        return rows

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return permute_backward(gradients[0], *ctx.saved_tensors), None


def permute(h: Tensor, chosen: Tensor) -> Tensor:
    """Copy each position `[u b h]` to its K experts: `[u b K h]`, where rows of one expert lie together."""
    rows: Tensor = _Permute.apply(h, chosen)
    return rows


def _unpermute_results(out: Tensor, weights: Tensor, chosen: Tensor) -> tuple[Tensor, Tensor]:
    return out.new_empty(*chosen.shape[:-1], out.size(-1)), chosen.new_empty(chosen.shape, dtype=torch.int32)


@opaque_op("unpermute(Tensor out, Tensor weights, Tensor chosen) -> (Tensor, Tensor)", _unpermute_results)
def unpermute_forward(out: Tensor, weights: Tensor, chosen: Tensor) -> tuple[Tensor, Tensor]:
    """Rows of the experts `[u b K h]` -> their weighted sum per position `[u b h]`, and the row map."""
    _, row_map = _row_map(chosen)
    rows = out.flatten(0, -2)[row_map].float()
    return (rows * weights.unsqueeze(-1)).sum(-2).to(out.dtype), row_map


def _unpermute_gradients(gradient: Tensor, out: Tensor, weights: Tensor, row_map: Tensor) -> tuple[Tensor, Tensor]:
    return out.new_empty(out.shape), weights.new_empty(weights.shape)


@opaque_op(
    "unpermute_backward(Tensor gradient, Tensor out, Tensor weights, Tensor row_map) -> (Tensor, Tensor)",
    _unpermute_gradients,
)
def unpermute_backward(gradient: Tensor, out: Tensor, weights: Tensor, row_map: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of the rows `[u b K h]` and of the weights, fp32 `[u b K]`."""
    upstream = gradient.float().unsqueeze(-2)
    to_weights = (out.flatten(0, -2)[row_map].float() * upstream).sum(-1)
    to_rows = torch.empty_like(out).flatten(0, -2)
    to_rows[row_map.flatten()] = (weights.unsqueeze(-1) * upstream).flatten(0, -2).to(out.dtype)
    return to_rows.view(out.shape), to_weights


class _Unpermute(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, out: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
        y: Tensor
        y, row_map = unpermute_forward(out, weights, chosen)
        ctx.save_for_backward(out, weights, row_map)
        return y

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:
        to_rows, to_weights = unpermute_backward(gradients[0], *ctx.saved_tensors)
        return to_rows, to_weights, None


def unpermute(out: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
    """Rows in the order of their experts `[u b K h]` -> each position's weighted sum `[u b h]`."""
    y: Tensor = _Unpermute.apply(out, weights, chosen)
    return y


def _copied(rows: Tensor, counts: Counts, ranks: int) -> Tensor:
    return rows.new_empty(rows.shape)


@opaque_op("by_expert(Tensor rows, int[] counts, int ranks) -> Tensor", _copied)
def expert_order(rows: Tensor, counts: Counts, ranks: int) -> Tensor:
    """Rows `[R h]` that lie rank by rank, each rank's expert by expert -> expert by expert; a copy.

    counts  rows per rank and expert, those of one rank together.
    """
    parts, own = rows.split(counts), len(counts) // ranks
    return torch.cat([part for expert in range(own) for part in parts[expert::own]])


@opaque_op("by_source(Tensor rows, int[] counts, int ranks) -> Tensor", _copied)
def source_order(rows: Tensor, counts: Counts, ranks: int) -> Tensor:
    """The inverse of `expert_order`: rows `[R h]` rank by rank again; a copy."""
    own = len(counts) // ranks
    parts = rows.split([count for expert in range(own) for count in counts[expert::own]])
    return torch.cat([part for rank in range(ranks) for part in parts[rank::ranks]])


class _Reorder(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, op: Any, inverse: Any, routing: Routing) -> Tensor:
        ctx.inverse, ctx.routing = inverse, routing
        out: Tensor = op(rows, routing.received, routing.sources)
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        return ctx.inverse(gradients[0], ctx.routing.received, ctx.routing.sources), None, None, None


def by_expert(rows: Tensor, routing: Routing) -> Tensor:
    """Received rows `[R h]`, rank by rank -> expert by expert."""
    out: Tensor = _Reorder.apply(rows, expert_order, source_order, routing)
    return out


def by_source(rows: Tensor, routing: Routing) -> Tensor:
    """Rows of the experts `[R h]`, expert by expert -> rank by rank."""
    out: Tensor = _Reorder.apply(rows, source_order, expert_order, routing)
    return out


# Exchanges over ep.


class _Exchange(torch.autograd.Function):
    """All-to-all of contiguous rows with a count for each rank; backward is the same the other way."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, sent: Counts, received: Counts, shape: tuple[int, ...], group: Group) -> Tensor:
        ctx.sent, ctx.received, ctx.shape, ctx.group = sent, received, rows.shape, group
        return _all_to_all(rows, sent, received, shape, group)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        rows = _all_to_all(gradients[0], ctx.received, ctx.sent, ctx.shape, ctx.group)
        return rows, None, None, None, None


def _all_to_all(rows: Tensor, sent: Counts, received: Counts, shape: tuple[int, ...], group: Group) -> Tensor:
    send = rows.contiguous().flatten(0, -2)
    recv = send.new_empty(shape)
    dist.all_to_all_single(recv.flatten(0, -2), send, received, sent, group=group)
    return recv


def to_experts(rows: Tensor, routing: Routing, group: Group) -> Tensor:
    """Rows in the order of the experts `[u b K h]` -> those of this rank's experts `[R h]`, rank by rank."""
    shape = (sum(routing.received_from), rows.size(-1))
    out: Tensor = _Exchange.apply(rows, routing.sent_to, routing.received_from, shape, group)
    return out


def from_experts(rows: Tensor, routing: Routing, shape: tuple[int, ...], group: Group) -> Tensor:
    """Rows of this rank's experts `[R h]`, rank by rank -> back where they came from, of shape `[u b K h]`."""
    out: Tensor = _Exchange.apply(rows, routing.received_from, routing.sent_to, shape, group)
    return out


# Exchanges over etp.


class _GatherRows(torch.autograd.Function):
    """All-gather of each rank's rows; backward reduces and scatters."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, counts: Counts, group: Group) -> Tensor:
        ctx.counts, ctx.group, ctx.shape = counts, group, rows.shape
        return _rows_gathered(rows, counts, group)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        return _rows_scattered(gradients[0], ctx.counts, ctx.group).view(ctx.shape), None, None


class _ScatterRows(torch.autograd.Function):
    """Reduce-scatter of all ranks' rows; backward gathers."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, counts: Counts, shape: tuple[int, ...], group: Group) -> Tensor:
        ctx.counts, ctx.group = counts, group
        return _rows_scattered(rows, counts, group).view(shape)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        return _rows_gathered(gradients[0], ctx.counts, ctx.group), None, None, None


def _rows_gathered(rows: Tensor, counts: Counts, group: Group) -> Tensor:
    """Rows of this rank, one after the other, -> `[all h]`. Uneven ones travel padded: gloo takes equal parts only."""
    send = rows.contiguous().flatten(0, -2)
    most = max(counts)
    if counts == [most] * len(counts):
        out = send.new_empty(sum(counts), send.size(-1))
        all_gather(out, send, group=group)
        return out
    padded = send.new_empty(len(counts) * most, send.size(-1))
    all_gather(padded, nn.functional.pad(send, (0, 0, 0, most - send.size(0))), group=group)
    return torch.cat([part[:count] for part, count in zip(padded.split(most), counts, strict=True)])


def _rows_scattered(rows: Tensor, counts: Counts, group: Group) -> Tensor:
    """The sum over ranks of `[all h]`, this rank's rows."""
    rows, most = rows.contiguous().flatten(0, -2), max(counts)
    own = counts[group.rank()]
    if counts != [most] * len(counts):
        parts = (nn.functional.pad(part, (0, 0, 0, most - part.size(0))) for part in rows.split(counts))
        rows = torch.cat(list(parts))
    out = rows.new_empty(most, rows.size(-1))
    reduce_scatter(out, rows, group=group)
    return out[:own]


def gather_rows(rows: Tensor, routing: Routing, group: Group) -> Tensor:
    """Rows of this rank -> those of all ranks that share its experts, rank by rank."""
    out: Tensor = _GatherRows.apply(rows, routing.gathered_from, group)
    return out


def scatter_rows(rows: Tensor, routing: Routing, shape: tuple[int, ...], group: Group) -> Tensor:
    """Partial sums of all those rows -> whole ones of this rank's, in its shape before they were gathered."""
    out: Tensor = _ScatterRows.apply(rows, routing.gathered_from, shape, group)
    return out


# The experts' products.


def _grouped_result(rows: Tensor, weight: Tensor, counts: Counts) -> Tensor:
    return rows.new_empty(*rows.shape[:-1], weight.size(1))


@opaque_op("grouped_linear(Tensor rows, Tensor weight, int[] counts) -> Tensor", _grouped_result)
def grouped_forward(rows: Tensor, weight: Tensor, counts: Counts) -> Tensor:
    """Rows `[.. i]`, weights `[c o i]` -> `[.. o]`: the first counts[0] rows by the first expert's, and so on."""
    parts = rows.flatten(0, -2).split(counts)
    out = torch.cat([part @ own.T for part, own in zip(parts, weight, strict=True)])
    return out.view(*rows.shape[:-1], -1)


def _grouped_gradients(gradient: Tensor, rows: Tensor, weight: Tensor, counts: Counts) -> tuple[Tensor, Tensor]:
    return weight.new_empty(weight.shape), rows.new_empty(rows.shape)


@opaque_op(
    "grouped_linear_backward(Tensor gradient, Tensor rows, Tensor weight, int[] counts) -> (Tensor, Tensor)",
    _grouped_gradients,
)
def grouped_backward(gradient: Tensor, rows: Tensor, weight: Tensor, counts: Counts) -> tuple[Tensor, Tensor]:
    """Gradient `[rows o]` -> gradients of the weights `[c o i]` and of the rows."""
    upstream, parts = gradient.split(counts), rows.flatten(0, -2).split(counts)
    to_weight = torch.stack([up.T @ part for up, part in zip(upstream, parts, strict=True)])
    to_rows = torch.cat([up @ own for up, own in zip(upstream, weight, strict=True)])
    return to_weight, to_rows.view(rows.shape)


class _GroupedLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, weight: Tensor, counts: Counts) -> Tensor:
        ctx.save_for_backward(rows, weight)
        ctx.counts = counts
        out: Tensor = grouped_forward(rows, weight, counts)
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:
        rows, weight = ctx.saved_tensors
        # As linear's: a copy only where the rows do not merge.
        to_weight, to_rows = grouped_backward(gradients[0].flatten(0, -2), rows, weight, ctx.counts)
        return to_rows, to_weight, None


def grouped_linear(rows: Tensor, weight: Tensor, counts: Counts) -> Tensor:
    """Rows `[.. i]` in the order of the experts, weights `[c o i]`, rows per expert -> `[.. o]`."""
    out: Tensor = _GroupedLinear.apply(rows, weight, counts)
    return out


@register_flop_formula(grouped_forward.overloadpacket)  # type: ignore[attr-defined]
def _grouped_flops(rows: Any, weight: Any, counts: Counts, **_: Any) -> int:
    return 2 * sum(counts) * int(weight[1]) * int(weight[2])


@register_flop_formula(grouped_backward.overloadpacket)  # type: ignore[attr-defined]
def _grouped_backward_flops(gradient: Any, rows: Any, weight: Any, counts: Counts, **_: Any) -> int:
    return 2 * _grouped_flops(rows, weight, counts)


class Experts(nn.Module):
    """The routed experts: e of them shared by the ep group, each a SwiGLU whose width the etp group shares."""

    def __init__(self, spec: Spec, ep: Group | None = None, etp: Group | None = None) -> None:
        super().__init__()
        dtype, hidden, own = DTYPES[spec.dtype], spec.dims.hidden, spec.experts // spec.ep
        self.ep, self.etp, self.width = ep, etp, spec.expert_ffn // spec.etp
        self.experts, self.per_token = spec.experts, spec.experts_per_token
        self.router = Linear(hidden, spec.experts, bias=False, dtype=dtype)
        self.fc1 = nn.Parameter(torch.empty(own, 2 * self.width, hidden, dtype=dtype))
        self.fc2 = nn.Parameter(torch.empty(own, hidden, self.width, dtype=dtype))
        if spec.moe_style != "fused":
            self.register_buffer("bias", torch.zeros(spec.experts), persistent=False)

    def forward(self, h: Tensor) -> Tensor:
        """`[u b h]` -> `[u b h]`."""
        logits = self.router(h)
        weights, chosen = router(logits, self.per_token)
        out, names = self.named(permute(h, chosen), chosen)
        mixed = unpermute(out, weights, chosen)
        del names  # the page's `experts` is one function: its names stay to its end
        return mixed

    def routed(self, rows: Tensor, chosen: Tensor) -> Tensor:
        """Rows `[u b K h]` in the order of their experts, through the experts and back to this rank."""
        return self.named(rows, chosen)[0]

    def named(self, rows: Tensor, chosen: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """The same, and what else stands in a name when they are back: the rows here and the first product."""
        routing, sent = route(chosen, self.experts, self.ep, self.etp), rows.shape
        if self.ep:
            rows = to_experts(rows, routing, self.ep)
        reached = rows.shape
        if self.etp:
            rows = gather_rows(rows, routing, self.etp)
        if self.ep or self.etp:
            rows = by_expert(rows, routing)
        gate_up = grouped_linear(rows, self.fc1, routing.per_expert)
        gate, up = gate_up.split([self.width, self.width], -1)
        out = grouped_linear(nn.functional.silu(gate) * up, self.fc2, routing.per_expert)
        if self.ep or self.etp:
            out = by_source(out, routing)
        if self.etp:
            out = scatter_rows(out, routing, reached, self.etp)
        if self.ep:
            out = from_experts(out, routing, sent, self.ep)
        return out, (rows, gate_up)


class TitanExperts(Experts):
    """Style `torchtitan`: rows weighed before the experts; they are added to what shared experts made."""

    bias: Tensor

    def forward(self, h: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        """`[u b h]` -> rows `[N*K h]` of the experts, and the index by which they are added."""
        logits = self.router(h)
        weights, chosen = titan_router(logits, self.bias, self.per_token)
        rows, row_weights, index = rows_gathered(h, weights, chosen)
        rows = weighed(rows, row_weights)
        return self.routed(rows, chosen), index


class LoopedExperts(Experts):
    """Style `transformers`: router in fp32, rows weighed in fp32 after the experts and added by index."""

    bias: Tensor

    def forward(self, h: Tensor) -> Tensor:
        """`[u b h]` -> `[u b h]`."""
        weights, chosen = wide_router(h, self.router.weight, self.bias, self.per_token)
        total = torch.zeros_like(h.flatten(0, -2), dtype=weights.dtype)
        rows, row_weights, positions = rows_indexed(h, weights, chosen)
        out = self.routed(rows, chosen)
        total = rows_added(total, out, row_weights, positions)
        return total.to(h.dtype).view(h.shape)


EXPERTS: dict[str, type[Experts]] = {"fused": Experts, "torchtitan": TitanExperts, "transformers": LoopedExperts}


def is_expert(name: str) -> bool:
    """Whether the parameter of that name is divided over ep: the stacked weights, not the router's."""
    return name.split(".")[-2] == "experts"


def divided_over_etp(name: str, whole: Tensor, parts: int, own: int) -> Tensor:
    """One etp rank's part of an expert parameter `[c ..]`: gate and up alike, and the second product's inputs."""
    if name.endswith("fc1"):
        return whole.unflatten(1, (2, -1)).chunk(parts, 2)[own].flatten(1, 2)
    return whole.chunk(parts, 2)[own]


def joined_over_etp(name: str, parts: Sequence[Tensor]) -> Tensor:
    """The inverse of `divided_over_etp`."""
    if name.endswith("fc1"):
        return torch.cat([part.unflatten(1, (2, -1)) for part in parts], 2).flatten(1, 2)
    return torch.cat(list(parts), 2)
