"""The forms of Multi-head Latent Attention as a practitioner writes them: one `nn.Module` each.

All share one state dict. Line by line they are the programs of docs/decisions/0001-the-reference-style.md; a name
lives until it is bound again or `forward` returns, which is part of what is measured.

S sequence, P ranks that share it, s = S/P, b micro-batch, n heads, l = n/P, d_c latent, k nope, r rope, v value.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from mla_cost.checks.reference.exchange import Group, gather, heads_to_sequence, sequence_to_heads
from mla_cost.checks.reference.kernels import make_kernel
from mla_cost.checks.reference.norm import RMSNorm
from mla_cost.checks.reference.remat import recomputed
from mla_cost.checks.reference.rope import apply_rope, rope_tables
from mla_cost.checks.reference.spec import DTYPES, Spec
from mla_cost.checks.reference.tp import join_columns


class Linear(nn.Linear):
    """`nn.Linear` without bias, its weight left to `initialise`."""

    def reset_parameters(self) -> None:
        """Leave the weight as it is: on fake tensors there is nothing to fill."""


class AttentionBlock(nn.Module):
    """What the forms have in common: parameters, tables, and the query and latent paths."""

    cos: Tensor
    sin: Tensor

    def __init__(self, spec: Spec, group: Group | None = None, tp: Group | None = None) -> None:
        super().__init__()
        if (group.size() if group else 1) != spec.sp:
            raise ValueError(f"sp {spec.sp} needs a group of that size")
        self.spec, self.dims, self.group = spec, spec.dims, group
        self.columns = tp if spec.sharded_down else None  # the ranks that divide the down-projections
        self.rank = group.rank() if group else 0
        self._make_parameters()
        self._make_tables()

    def _make_parameters(self) -> None:
        dims, dtype = self.dims, DTYPES[self.spec.dtype]
        parts = self.columns.size() if self.columns else 1
        q_width = dims.heads * (dims.nope + dims.rope)
        if dims.q_lora_rank is None:
            self.q_proj = Linear(dims.hidden, q_width, bias=False, dtype=dtype)
        else:
            self.q_down = Linear(dims.hidden, dims.q_lora_rank // parts, bias=False, dtype=dtype)
            self.q_norm = RMSNorm(dims.q_lora_rank, self.spec.norm, dtype)
            self.q_up = Linear(dims.q_lora_rank, q_width, bias=False, dtype=dtype)
        self.kv_down = Linear(dims.hidden, (dims.kv_lora_rank + dims.rope) // parts, bias=False, dtype=dtype)
        self.kv_norm = RMSNorm(dims.kv_lora_rank, self.spec.norm, dtype)
        self.kv_up = Linear(dims.kv_lora_rank, dims.heads * (dims.nope + dims.value), bias=False, dtype=dtype)
        self.out_proj = Linear(dims.heads * dims.value, dims.hidden, bias=False, dtype=dtype)
        if self.spec.idle_mlp:
            widths = ((dims.hidden, 2 * self.spec.idle_mlp), (self.spec.idle_mlp, dims.hidden))
            self.idle = nn.ModuleList(Linear(*width, bias=False, dtype=dtype) for width in widths)

    def _make_tables(self) -> None:
        """RoPE tables of this rank's positions, and the kernel with its mask if one is asked for."""
        spec, local = self.spec, self.spec.seq_len // self.spec.sp
        positions = torch.arange(self.rank * local, (self.rank + 1) * local)
        cos, sin = rope_tables(positions, self.dims.rope, DTYPES[spec.dtype])
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)
        # Only kv-gather keeps a rank to its own queries; the others attend with all queries of their own heads.
        first = self.rank * local if spec.pair[1] == "kv-gather" else 0
        mask = None
        if spec.mask == "tensor":
            queries = positions if spec.pair[1] == "kv-gather" else torch.arange(spec.seq_len)
            mask = torch.arange(spec.seq_len) > queries.unsqueeze(1)
        scale = (self.dims.nope + self.dims.rope) ** -0.5
        self.kernel = make_kernel(spec, scale, mask, None if mask is None else first)
        if spec.recomputes("core_attn"):
            recomputed(self.kernel)

    def query(self, x: Tensor) -> Tensor:
        """`[s b h]` -> `[s b n k+r]`."""
        dims = self.dims
        if dims.q_lora_rank is None:
            q = self.q_proj(x)
        else:
            q = self.q_down(x)
            if self.columns:
                q = join_columns(q, self.columns)
            q = self.q_norm(q)
            q = self.q_up(q)
        q = q.view(*x.shape[:2], dims.heads, dims.nope + dims.rope)
        if dims.rope == 0:
            return q
        q_nope, q_rope = q.split([dims.nope, dims.rope], -1)
        return torch.cat((q_nope, apply_rope(q_rope, self.cos, self.sin)), -1)

    def latent(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """`[s b h]` -> normalised latent `[s b d_c]` and rotated key `[s b 1 r]`, None where r is 0."""
        c = self.kv_down(x)
        if self.columns:
            c = join_columns(c, self.columns)
        if self.dims.rope == 0:
            return self.kv_norm(c), None
        c, k_rope = c.split([self.dims.kv_lora_rank, self.dims.rope], -1)
        return self.kv_norm(c), apply_rope(k_rope.unsqueeze(2), self.cos, self.sin)

    def own_rows(self) -> Tensor:
        """Rows of the key and value up-projection for this rank's heads, `[l*(k+v) d_c]`."""
        weight = self.kv_up.weight
        if self.group is None:
            return weight
        rows = weight.size(0) // self.spec.sp
        return weight.narrow(0, self.rank * rows, rows)


class Explicit(AttentionBlock):
    """The latent expanded to per-head keys and values; each scheme exchanges something else."""

    def keys_values(self, c: Tensor, k_rope: Tensor | None, w: Tensor) -> tuple[Tensor, Tensor]:
        """Expand the latent by the rows w `[m*(k+v) d_c]` of m heads -> key `[.. b m k+r]`, value `[.. b m v]`."""
        dims = self.dims
        kv = nn.functional.linear(c, w).view(*c.shape[:2], -1, dims.nope + dims.value)
        k_nope, value = kv.split([dims.nope, dims.value], -1)
        if self.spec.v_layout == "contiguous":
            value = value.contiguous()
        if k_rope is None:
            return k_nope, value
        return torch.cat((k_nope, k_rope.expand(-1, -1, k_nope.size(2), -1)), -1), value


class Ulysses(Explicit):
    """Explicit: q, key, value and o change between slices of the sequence and slices of the heads."""

    def forward(self, x: Tensor) -> Tensor:
        """`[s b h]` -> `[s b h]`."""
        q = self.query(x)
        if self.group:
            q = sequence_to_heads(q, self.group)
        c, k_rope = self.latent(x)
        key, value = self.keys_values(c, k_rope, self.kv_up.weight)
        if self.group:
            key = sequence_to_heads(key, self.group)
            value = sequence_to_heads(value, self.group)
        o = self.kernel(q, key, value)
        if self.group:
            o = heads_to_sequence(o, self.group)
        return self.out_proj(o.flatten(2))


class KvGather(Explicit):
    """Explicit: every rank gathers the keys and values of all heads and keeps its own queries."""

    def forward(self, x: Tensor) -> Tensor:
        """`[s b h]` -> `[s b h]`."""
        q = self.query(x)
        c, k_rope = self.latent(x)
        key, value = self.keys_values(c, k_rope, self.kv_up.weight)
        if self.group:
            key = gather(key, self.group)
            value = gather(value, self.group)
        o = self.kernel(q, key, value)
        return self.out_proj(o.flatten(2))


class Laga(Explicit):
    """Explicit maths on a gathered latent: a rank rebuilds keys and values for its own heads only."""

    def forward(self, x: Tensor) -> Tensor:
        """`[s b h]` -> `[s b h]`."""
        q = self.query(x)
        if self.group:
            q = sequence_to_heads(q, self.group)
        c, k_rope = self.latent(x)
        if self.group:
            shared = c if k_rope is None else torch.cat((c, k_rope.squeeze(2)), -1)
            shared = gather(shared, self.group)
            if k_rope is None:
                c = shared
            else:
                c, k_rope = shared.split([self.dims.kv_lora_rank, self.dims.rope], -1)
                k_rope = k_rope.unsqueeze(2)
        w = self.own_rows()
        key, value = self.keys_values(c, k_rope, w)
        o = self.kernel(q, key, value)
        if self.group:
            o = heads_to_sequence(o, self.group)
        return self.out_proj(o.flatten(2))


class Absorbed(AttentionBlock):
    """The key's up-projection folded into the query: all heads attend to one gathered latent."""

    def absorb(self, q: Tensor, w_uk: Tensor) -> Tensor:
        """Q `[S b l k+r]`, w_uk `[l k d_c]` -> `[S b l d_c+r]`."""
        if self.dims.rope == 0:
            return torch.einsum("sbnk,nkc->sbnc", q, w_uk)
        q_nope, q_rope = q.split([self.dims.nope, self.dims.rope], -1)
        return torch.cat((torch.einsum("sbnk,nkc->sbnc", q_nope, w_uk), q_rope), -1)

    def fold_and_attend(self, q: Tensor, key: Tensor, w_uk: Tensor) -> Tensor:
        """Absorb and attend in one function, each result under a name of its own; returns `[S b l d_c]`."""
        dims = self.dims
        if dims.rope == 0:
            q_absorbed = torch.einsum("sbnk,nkc->sbnc", q, w_uk)
            return self.kernel(q_absorbed, key, key)  # type: ignore[no-any-return]
        q_nope, q_rope = q.split([dims.nope, dims.rope], -1)
        q_absorbed = torch.einsum("sbnk,nkc->sbnc", q_nope, w_uk)
        q_and_rope = torch.cat((q_absorbed, q_rope), -1)
        return self.kernel(q_and_rope, key, key[..., : dims.kv_lora_rank])  # type: ignore[no-any-return]

    def forward(self, x: Tensor) -> Tensor:
        """`[s b h]` -> `[s b h]`."""
        dims = self.dims
        q = self.query(x)
        if self.group:
            q = sequence_to_heads(q, self.group)
        c, k_rope = self.latent(x)
        key = c if k_rope is None else torch.cat((c, k_rope.squeeze(2)), -1)
        if self.group:
            key = gather(key, self.group)
        w = self.own_rows().view(-1, dims.nope + dims.value, dims.kv_lora_rank)
        w_uk, w_uv = w.split([dims.nope, dims.value], 1)
        if self.spec.names == "held":
            o = self.fold_and_attend(q, key, w_uk)
        else:
            q = self.absorb(q, w_uk)
            o = self.kernel(q, key, key if k_rope is None else key[..., : dims.kv_lora_rank])
        o = torch.einsum("sbnc,nvc->sbnv", o, w_uv)
        if self.group:
            o = heads_to_sequence(o, self.group)
        return self.out_proj(o.flatten(2))


MODULES: dict[tuple[str, str], type[AttentionBlock]] = {
    ("explicit", "ulysses"): Ulysses,
    ("explicit", "kv-gather"): KvGather,
    ("explicit", "latent-gather"): Laga,
    ("absorbed", "latent-gather"): Absorbed,
}


def make_block(spec: Spec, group: Group | None = None, tp: Group | None = None) -> AttentionBlock:
    """Return the module for the spec, parameters uninitialised; `group` None at sp 1, `tp` at tp 1."""
    block = MODULES[spec.pair](spec, group, tp)
    if spec.recomputes("full"):
        recomputed(block)
    return block


def make_stack(spec: Spec, group: Group | None = None) -> nn.Module:
    """Return the spec's `layers` blocks in a row; one block is itself, under its own parameter names."""
    if spec.layers == 1:
        return make_block(spec, group)
    return nn.Sequential(*(make_block(spec, group) for _ in range(spec.layers)))


@torch.no_grad()
def initialise(block: nn.Module, seed: int = 0) -> None:
    """Fill the parameters from the seed: the same values for every form, rank and dtype (but for rounding)."""
    generator = torch.Generator().manual_seed(seed)
    for _, parameter in sorted(block.named_parameters()):
        values = torch.randn(parameter.shape, generator=generator)
        scaled = 1 + values / 8 if parameter.dim() == 1 else values * parameter.size(-1) ** -0.5
        parameter.copy_(scaled)
