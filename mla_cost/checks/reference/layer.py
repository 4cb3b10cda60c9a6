"""A transformer layer around the attention, the embedding and the head: one `nn.Module` each.

Line by line they are the programs of docs/decisions/0007-the-layer-style.md, and of 0008-the-expert-layer-style.md for
a layer with experts; a name lives until it is bound again or `forward` returns. t ranks of tensor parallelism, u = s/t
positions between its regions, f and V a rank's part of the MLP's width and of the vocabulary.

Token ids are tables, as RoPE's are: buffers, filled by `read`.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from mla_cost.checks.reference.experts import EXPERTS, TitanExperts
from mla_cost.checks.reference.forms import Linear, make_block, make_stack
from mla_cost.checks.reference.loss import LOSSES, chunked_loss, own_rows
from mla_cost.checks.reference.norm import RMSNorm
from mla_cost.checks.reference.plain_experts import rows_scattered
from mla_cost.checks.reference.remat import recomputed
from mla_cost.checks.reference.spec import DTYPES, Spec
from mla_cost.checks.reference.tp import ProcessGroups, gather_tp, scatter_tp

ONE_RANK = ProcessGroups()


class Lookup(nn.Embedding):
    """`nn.Embedding`, its weight left to `initialise`."""

    def reset_parameters(self) -> None:
        """Leave the weight as it is: on fake tensors there is nothing to fill."""


class Mlp(nn.Module):
    """SwiGLU: gate and up from one projection."""

    def __init__(self, hidden: int, width: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.width = width
        self.fc1 = Linear(hidden, 2 * width, bias=False, dtype=dtype)
        self.fc2 = Linear(width, hidden, bias=False, dtype=dtype)

    def forward(self, h: Tensor) -> Tensor:
        """`[s b h]` -> `[s b h]`, a partial sum where the width is divided."""
        gate_up = self.fc1(h)
        gate, up = gate_up.split([self.width, self.width], -1)
        return self.fc2(nn.functional.silu(gate) * up)


class DenseLayer(nn.Module):
    """Attention and MLP, each with its norm and residual; the attention has a tp rank's heads, and all s positions."""

    def __init__(self, spec: Spec, groups: ProcessGroups = ONE_RANK) -> None:
        super().__init__()
        groups.check(spec.sp, spec.tp)
        dims, dtype = spec.dims, DTYPES[spec.dtype]
        self.tp = groups.tp
        self.attention_norm = RMSNorm(dims.hidden, spec.norm, dtype)
        self.attention = make_block(attention_of(spec), groups.sp, groups.tp)
        self.mlp_norm = RMSNorm(dims.hidden, spec.norm, dtype)
        self.mlp = Mlp(dims.hidden, spec.ffn // spec.tp, dtype)
        if spec.recomputes("mlp"):
            recomputed(self.mlp)

    def forward(self, x: Tensor) -> Tensor:
        """`[u b h]` -> `[u b h]`."""
        h = self.attention_norm(x)
        if self.tp:
            h = gather_tp(h, self.tp)
        a = self.attention(h)
        if self.tp:
            a = scatter_tp(a, self.tp)
        r = x + a
        h = self.mlp_norm(r)
        if self.tp:
            h = gather_tp(h, self.tp)
        m = self.mlp(h)
        if self.tp:
            m = scatter_tp(m, self.tp)
        return r + m


class MoeLayer(nn.Module):
    """A dense layer whose MLP is routed experts, on a rank's own u positions, and shared ones in a tp region."""

    def __init__(self, spec: Spec, groups: ProcessGroups = ONE_RANK) -> None:
        super().__init__()
        groups.check(spec.sp, spec.tp, spec.ep, spec.etp)
        dims, dtype = spec.dims, DTYPES[spec.dtype]
        self.tp = groups.tp
        self.attention_norm = RMSNorm(dims.hidden, spec.norm, dtype)
        self.attention = make_block(attention_of(spec), groups.sp, groups.tp)
        self.mlp_norm = RMSNorm(dims.hidden, spec.norm, dtype)
        self.experts = EXPERTS[spec.moe_style](spec, groups.ep, groups.etp)
        self.shared = Mlp(dims.hidden, spec.shared_ffn // spec.tp, dtype) if spec.shared_ffn else None
        if spec.recomputes("moe"):
            recomputed(self.experts)
        if self.shared is not None and (spec.recomputes("moe") or spec.recomputes("shared_experts")):
            recomputed(self.shared)

    def forward(self, x: Tensor) -> Tensor:
        """`[u b h]` -> `[u b h]`."""
        h = self.attention_norm(x)
        if self.tp:
            h = gather_tp(h, self.tp)
        a = self.attention(h)
        if self.tp:
            a = scatter_tp(a, self.tp)
        r = x + a
        h = self.mlp_norm(r)
        if isinstance(self.experts, TitanExperts):
            y, index = self.experts(h)
            z = torch.zeros_like(h) if self.shared is None else self._shared(h)
            y = rows_scattered(z, y, index)
            return r + y
        y = self.experts(h)
        if self.shared is not None:
            z = self._shared(h)
            y = y + z
        return r + y

    def _shared(self, z: Tensor) -> Tensor:
        if self.tp:
            z = gather_tp(z, self.tp)
        assert self.shared is not None
        z = self.shared(z)
        return scatter_tp(z, self.tp) if self.tp else z


class Vocabulary(nn.Module):
    """What embedding and head share: V rows of the vocabulary, from `first` on, and the tokens as buffers."""

    tokens: Tensor

    def __init__(self, spec: Spec, groups: ProcessGroups) -> None:
        super().__init__()
        groups.check(spec.sp, spec.tp)
        self.tp, self.rows = groups.tp, spec.vocab // spec.tp
        self.first = groups.tp_rank * self.rows
        empty = torch.zeros(spec.seq_len // spec.sp, spec.micro_batch, dtype=torch.int64)
        self.register_buffer("tokens", empty, persistent=False)


class Embedding(Vocabulary):
    """Rows of the tokens; with tp each rank looks up its own rows, and the rest are zeros."""

    others: Tensor

    def __init__(self, spec: Spec, groups: ProcessGroups = ONE_RANK, shared: Lookup | None = None) -> None:
        super().__init__(spec, groups)
        self.embedding = Lookup(self.rows, spec.dims.hidden, dtype=DTYPES[spec.dtype]) if shared is None else shared
        self.register_buffer("others", torch.zeros_like(self.tokens.unsqueeze(-1), dtype=torch.bool), persistent=False)

    def read(self, ids: Tensor) -> None:
        """Take the token ids `[s b]` of the next runs."""
        self.tokens, others = own_rows(ids, self.first, self.rows)
        self.others = others.unsqueeze(-1)

    def forward(self) -> Tensor:
        """Tokens `[s b]` -> `[u b h]`."""
        e: Tensor = self.embedding(self.tokens)
        if self.tp:
            e.masked_fill_(self.others, 0)
            e = scatter_tp(e, self.tp)
        return e


class Head(Vocabulary):
    """The last norm, the logits and the loss."""

    minus: Tensor

    def __init__(self, spec: Spec, groups: ProcessGroups = ONE_RANK, shared: nn.Linear | None = None) -> None:
        super().__init__(spec, groups)
        dtype = DTYPES[spec.dtype]
        self.norm = RMSNorm(spec.dims.hidden, spec.norm, dtype)
        self.head = Linear(spec.dims.hidden, self.rows, bias=False, dtype=dtype) if shared is None else shared
        self.register_buffer("minus", -torch.ones_like(self.tokens, dtype=torch.float32), persistent=False)
        self.loss, self.chunks = spec.loss, spec.loss_chunks

    def read(self, targets: Tensor) -> None:
        """Take the target ids `[s b]` of the next runs."""
        self.tokens, others = own_rows(targets, self.first, self.rows)
        self.minus = others.float() - 1

    def forward(self, x: Tensor) -> Tensor:
        """`[u b h]` -> the mean loss of the s x b positions, a scalar, the same on every tp rank."""
        h = self.norm(x)
        if self.tp:
            h = gather_tp(h, self.tp)
        if self.loss == "chunked":
            return chunked_loss(h, self.head.weight, self.tokens, self.minus, self.chunks, self.tp)
        logits = self.head(h)
        return LOSSES[self.loss](logits, self.tokens, self.minus, self.tp)


class MtpInput(nn.Module):
    """What a multi-token-prediction module does before its own layer. shared: the model's own embedding."""

    def __init__(self, spec: Spec, groups: ProcessGroups = ONE_RANK, shared: Lookup | None = None) -> None:
        super().__init__()
        dims, dtype = spec.dims, DTYPES[spec.dtype]
        self.embedding = Embedding(spec, groups, shared)
        self.hidden_norm = RMSNorm(dims.hidden, spec.norm, dtype)
        self.token_norm = RMSNorm(dims.hidden, spec.norm, dtype)
        self.joined = Linear(2 * dims.hidden, dims.hidden, bias=False, dtype=dtype)

    def read(self, ids: Tensor) -> None:
        """Take the token ids `[s b]` of the next runs: those after each position."""
        self.embedding.read(ids)

    def forward(self, x: Tensor) -> Tensor:
        """`[u b h]` -> `[u b h]`."""
        e = self.embedding()
        h = self.hidden_norm(x)
        t = self.token_norm(e)
        j = torch.cat([t, h], -1)
        return self.joined(j)


def attention_of(spec: Spec) -> Spec:
    """Return the attention inside a dense or moe layer: one tp rank's heads, all s positions."""
    dims = replace(spec.dims, heads=spec.dims.heads // spec.tp)
    remat = "core_attn" if spec.recomputes("core_attn") else "none"
    return replace(spec, layer="attention", tp=1, ep=1, etp=1, layers=1, dims=dims, remat=remat)


def make_layer(spec: Spec, groups: ProcessGroups = ONE_RANK) -> nn.Module:
    """Return the module for the spec's layer (`layers` of them in a row), parameters uninitialised."""
    if spec.layer == "attention":
        return make_stack(spec, groups.sp)
    modules: dict[str, type[DenseLayer | MoeLayer | Embedding | Head | MtpInput]] = {
        "dense": DenseLayer,
        "moe": MoeLayer,
        "embedding": Embedding,
        "head": Head,
        "mtp_input": MtpInput,
    }
    layers = [modules[spec.layer](spec, groups) for _ in range(spec.layers)]
    if spec.recomputes("full"):
        for layer in layers:
            recomputed(layer)
    return layers[0] if spec.layers == 1 else nn.Sequential(*layers)


def make_inputs(spec: Spec) -> list[Tensor]:
    """Return the leaves that one rank's layer is called with, uninitialised: `[u b h]`, or none for the embedding."""
    if spec.layer == "embedding":
        return []
    shape = (spec.seq_len // (spec.sp * spec.tp), spec.micro_batch, spec.dims.hidden)
    return [torch.empty(shape, dtype=DTYPES[spec.dtype], requires_grad=True)]
