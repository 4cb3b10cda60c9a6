"""Rings as their libraries write them, for what they keep and hold: one rank, nothing sent, a flash kernel stands in.

Line by line zhuzilin/ring-flash-attention@8996282 zigzag_ring_flash_attn.py and utils.py, and
mlc-ai/pith-train@889a4088 pithtrain/operators/ring_attention.py:460-708 in bf16, in the layout s b n d. Both merge the
outputs of hops in a scripted or compiled function, so what merging makes inside itself is not held: it is one op here.
A rank is the last one, which merges whole outputs in all hops, or the first, which expands whole latents in all.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from mla_cost.checks.reference.exchange import heads_to_sequence, sequence_to_heads
from mla_cost.checks.reference.fake import fake_groups
from mla_cost.checks.reference.forms import Explicit
from mla_cost.checks.reference.layer import make_inputs
from mla_cost.checks.reference.measure import Recording, record
from mla_cost.checks.reference.opaque import opaque_op
from mla_cost.checks.reference.spec import Spec

STEP = "Tensor q, Tensor key, Tensor value"


def _out(q: Tensor, value: Tensor) -> Tensor:
    return q.new_empty(*q.shape[:-1], value.size(-1))


def _rows(q: Tensor) -> Tensor:
    return q.new_empty(q.size(1), q.size(2), q.size(0), dtype=torch.float32)


@opaque_op(f"ring_step({STEP}) -> (Tensor, Tensor)", lambda q, _, value: (_out(q, value), _rows(q)))
def step_forward(q: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """What a hop's kernel makes: output `[s b n v]` and fp32 log-sum-exp `[b n s]`, without values."""
    del key
    return _out(q, value), _rows(q)


def _gradients(q: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return tuple(each.new_empty(each.shape) for each in (q, key, value))  # type: ignore[return-value]


@opaque_op(f"ring_step_back({STEP}) -> (Tensor, Tensor, Tensor)", _gradients)
def step_backward(q: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """What a hop's kernel makes in backward where it is handed no buffers: three gradients, without values."""
    return _gradients(q, key, value)


@opaque_op(
    "ring_merge(Tensor out, Tensor lse, Tensor block) -> (Tensor, Tensor)",
    lambda out, lse, block: (out.new_empty(block.shape, dtype=torch.float32), lse.new_empty(lse.shape)),
)
def merge(out: Tensor, lse: Tensor, block: Tensor) -> tuple[Tensor, Tensor]:
    """An output and log-sum-exp with a hop's merged in: new ones, fp32, without values."""
    return out.new_empty(block.shape, dtype=torch.float32), lse.new_empty(lse.shape)


class OwnChunks(torch.autograd.Function):
    """The ring of zhuzilin/ring-flash-attention on its last rank."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, ranks: int) -> Tensor:
        """Lines 60-88 and 221-237: `[s b n d]` to `[s b n v]`."""
        k, v = k.contiguous(), v.contiguous()
        own, half = (k, v), q.size(0) // 2
        out = lse = None
        for step in range(ranks):
            if step + 1 != ranks:
                next_k, next_v = torch.empty_like(k), torch.empty_like(v)
            seen = (k, v) if step == 0 else (k[:half], v[:half])
            block_out, block_lse = step_forward(q, *seen)
            if out is None:
                out, lse = block_out.to(torch.float32), block_lse
            else:
                out, lse = merge(out, lse, block_out)
            if step + 1 != ranks:
                k, v = next_k, next_v
        assert out is not None
        result = out.to(q.dtype)
        ctx.save_for_backward(q, *own, result, lse)
        ctx.ranks = ranks
        return result

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Lines 107-199: gradients of q, k and v."""
        q, k, v, _, lse = ctx.saved_tensors
        del gradients
        rest = lse.chunk(2, dim=2)[1].contiguous()
        buffers = [torch.empty(each.shape, dtype=each.dtype, device=each.device) for each in (q, k, v)]
        going: list[Tensor] = []
        coming: list[Tensor] = []
        for step in range(ctx.ranks):
            if step + 1 != ctx.ranks:
                next_k, next_v = torch.empty_like(k), torch.empty_like(v)
            if step == 0:
                dq, *going = (each.to(torch.float32) for each in buffers)
                slots = [torch.empty_like(each) for each in going]
            else:
                slots, going = going, coming
            coming = slots
            if step + 1 != ctx.ranks:
                k, v = next_k, next_v
        assert rest.numel()
        return dq.to(q.dtype), *(each.to(q.dtype) for each in coming), None


class Latents(torch.autograd.Function):
    """The ring of latents of pith-train on its first rank. The weight is `[n*(k+v) d_c]`, its gradient fp32."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, latent: Tensor, k_pe: Tensor, weight: Tensor, ranks: int, nope: int) -> Tensor:
        """Lines 482-535."""
        own, half, heads = (latent, k_pe), q.size(0) // 2, q.size(2)
        out = lse = None
        for step in range(ranks):
            if step + 1 < ranks:
                following = torch.empty_like(latent), torch.empty_like(k_pe)
            k_nope, value = decompress(latent, weight, heads, nope)
            key = torch.cat([k_nope, k_pe.expand(-1, -1, heads, -1)], -1)
            seen = q if step == 0 else q[half:]
            block_out, block_lse = step_forward(seen, key, value)
            if out is None:
                out, lse = block_out.to(torch.float32), block_lse
            else:
                merged, rows = merge(out[half:], lse[..., half:], block_out)  # type: ignore[index]
                out[half:], lse[..., half:] = merged, rows  # type: ignore[index]
                del merged, rows
            if step + 1 < ranks:
                latent, k_pe = following
        assert out is not None
        result = out.to(q.dtype)
        ctx.save_for_backward(q, *own, weight, result, lse)
        ctx.ranks, ctx.nope = ranks, nope
        return result

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Lines 567-708."""
        q, latent, k_pe, weight, out, lse = ctx.saved_tensors
        half, heads, nope, wide = q.size(0) // 2, q.size(2), ctx.nope, weight.to(torch.float32)
        dout = gradients[0].contiguous()
        backs = [each.transpose(0, 1)[:, half:].contiguous() for each in (q, dout, out)]  # sequences come first there
        backs.append(lse[..., half:].contiguous())
        dw = torch.zeros(weight.shape, dtype=torch.float32, device=weight.device)
        going: tuple[Tensor, ...] = ()
        coming: tuple[Tensor, ...] = ()
        for step in range(ctx.ranks):
            if step + 1 < ctx.ranks:
                following = torch.empty_like(latent), torch.empty_like(k_pe)
            k_nope, value = decompress(latent, weight, heads, nope)
            key = torch.cat([k_nope, k_pe.expand(-1, -1, heads, -1)], -1)
            dq_step, dkey, dvalue = step_backward(q if step == 0 else backs[0].transpose(0, 1), key, value)
            dk_nope, dk_pe = dkey.split([nope, dkey.size(-1) - nope], -1)
            d_kv = torch.cat([dk_nope, dvalue], -1).flatten(2).flatten(0, 1).to(torch.float32)
            of_latent = (d_kv @ wide).view(latent.shape)
            dw += d_kv.t() @ latent.flatten(0, 1).to(torch.float32)
            of_rope = dk_pe.sum(dim=2, keepdim=True).to(torch.float32).contiguous()
            if step == 0:
                dq = dq_step.to(torch.float32)
                going = of_latent, of_rope
                slots = tuple(torch.empty_like(each) for each in going)
            else:
                dq[half:] += dq_step
                slots, going = going, coming
                going[0].add_(of_latent)
                going[1].add_(of_rope)
            if step + 1 < ctx.ranks:
                latent, k_pe = following
            coming = slots
        grads = dq.contiguous().to(q.dtype), *(each.to(q.dtype) for each in coming)
        return *grads, dw.to(weight.dtype), None, None


def decompress(latent: Tensor, weight: Tensor, heads: int, nope: int) -> tuple[Tensor, Tensor]:
    """Keys without their rotated part, a view, and values, contiguous. Lines 428-457."""
    kv = nn.functional.linear(latent, weight).view(*latent.shape[:2], heads, -1)
    k_nope, value = kv.split([nope, kv.size(-1) - nope], -1)
    return k_nope, value.contiguous()


class HeadByHead(torch.autograd.Function):
    """Keys and values of all ranks a head at a time: llama3_flash_attn_varlen.py of the same commit, stride one."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, ranks: int) -> Tensor:
        """Lines 81-158 and 328-340."""
        k, v = k.contiguous(), v.contiguous()
        buffers = _head_buffers(k, v, ranks), _head_buffers(k, v, ranks)
        kept = send_k, send_v = k[:, :, :1].contiguous(), v[:, :, :1].contiguous()
        outs, rows = [], []
        for head in range(k.size(2)):
            if head < k.size(2) - 1:
                send_k = k[:, :, head + 1 : head + 2].contiguous()
                send_v = v[:, :, head + 1 : head + 2].contiguous()
            out, lse = step_forward(q[:, :, head : head + 1], *buffers[0])
            outs.append(out)
            rows.append(lse)
        out, lse = torch.cat(outs, 2), torch.cat(rows, 1)
        assert len(kept) + send_k.numel() + send_v.numel()
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.ranks = ranks
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Lines 182-299."""
        del gradients
        q, k, v, _, lse = ctx.saved_tensors
        buffers = [_head_buffers(k, v, ctx.ranks) for _ in range(3)]
        several = k.size(2) > 1
        row = (torch.empty_like(k[:, :, :1]), torch.empty_like(v[:, :, :1])) if several else ()
        results = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
        kept = send_k, send_v = k[:, :, :1].contiguous(), v[:, :, :1].contiguous()
        for head in range(k.size(2)):
            of_head = lse[:, head : head + 1].contiguous()
            if head < k.size(2) - 1:
                send_k = k[:, :, head + 1 : head + 2].contiguous()
                send_v = v[:, :, head + 1 : head + 2].contiguous()
        assert len(buffers) + len(row) + len(kept) + len(of_head) + send_k.numel() + send_v.numel()
        return *results, None


def _head_buffers(k: Tensor, v: Tensor, ranks: int) -> tuple[Tensor, Tensor]:
    """One head of the keys and values of all ranks."""
    s, b, _, _ = k.shape
    return k.new_empty(ranks * s, b, 1, k.size(-1)), v.new_empty(ranks * s, b, 1, v.size(-1))


class GatherHeads(Explicit):
    """A block around keys and values gathered a head at a time."""

    def forward(self, x: Tensor) -> Tensor:
        """`[s b h]` -> `[s b h]`."""
        q = self.query(x)
        c, k_rope = self.latent(x)
        key, value = self.keys_values(c, k_rope, self.kv_up.weight)
        o: Tensor = HeadByHead.apply(q, key, value, self.spec.sp)
        return self.out_proj(o.flatten(2))


class RingOwn(Explicit):
    """A block around the ring of own chunks."""

    def forward(self, x: Tensor) -> Tensor:
        """`[s b h]` -> `[s b h]`."""
        q = self.query(x)
        c, k_rope = self.latent(x)
        key, value = self.keys_values(c, k_rope, self.kv_up.weight)
        o: Tensor = OwnChunks.apply(q, key, value, self.spec.sp)
        return self.out_proj(o.flatten(2))


class RingOfLatents(Explicit):
    """A block around the ring of latents."""

    def forward(self, x: Tensor) -> Tensor:
        """`[s b h]` -> `[s b h]`."""
        q = self.query(x)
        c, k_rope = self.latent(x)
        o: Tensor = Latents.apply(q, c, k_rope, self.kv_up.weight, self.spec.sp, self.dims.nope)
        return self.out_proj(o.flatten(2))


class Usp(Explicit):
    """A block that exchanges heads inside a group, around the ring of own chunks between groups."""

    inner: dist.ProcessGroup

    def forward(self, x: Tensor) -> Tensor:
        """`[s b h]` -> `[s b h]`."""
        q = self.query(x)
        q = sequence_to_heads(q, self.inner)
        c, k_rope = self.latent(x)
        key, value = self.keys_values(c, k_rope, self.kv_up.weight)
        key = sequence_to_heads(key, self.inner)
        value = sequence_to_heads(value, self.inner)
        o: Tensor = OwnChunks.apply(q, key, value, self.spec.sp // self.inner.size())
        o = heads_to_sequence(o, self.inner)
        return self.out_proj(o.flatten(2))


BLOCKS: dict[str, type[Explicit]] = {
    "ring-own": RingOwn,
    "latent-ring": RingOfLatents,
    "usp": Usp,
    "gather-heads": GatherHeads,
}


def run_ring(scheme: str, spec: Spec, inside: int = 1) -> Recording:
    """Record one block of a rank on fake tensors. spec: its scheme is not read. inside: ranks of an inner group."""
    with fake_groups(spec.sp) as groups, FakeTensorMode():
        block = BLOCKS[scheme](spec, groups.sp)
        if isinstance(block, Usp):
            block.inner = dist.new_group(list(range(inside)))
        return record(block, make_inputs(spec))
