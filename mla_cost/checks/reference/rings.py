"""Schemes that carry keys and values, or latents, from rank to rank, run for real over gloo: outputs and gradients.

Each is written as its systems write it: a chunk comes, attention is merged in fp32 by its log-sum-exp, and backward
sends gradients home. Tokens sit zig-zag: of 2 P chunks rank i has i and 2 P - 1 - i. What every hop sends is counted.
Exchanges of heads are those of `exchange`.

S sequence, P ranks, s = S/P, b batch, n heads, k nope, r rope, v value, d_c latent.
"""

from __future__ import annotations

import multiprocessing
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.multiprocessing.spawn import start_processes

from mla_cost.checks.reference.exchange import Group, gather, heads_to_sequence, sequence_to_heads
from mla_cost.checks.reference.spec import Dims

TIMEOUT = timedelta(seconds=120)


@dataclass(frozen=True)
class RingRun:
    """One scheme on its ranks: whole tensors by name, and the bytes that each rank's hops sent in each phase."""

    tensors: dict[str, Tensor]
    sent: dict[str, tuple[int, ...]]


class Ring:
    """The ranks that a chunk goes round, and what this one has sent on."""

    def __init__(self, group: Group, positions: list[Tensor]) -> None:
        self.group, self.positions = group, positions
        self.ranks, self.rank = group.size(), group.rank()
        self.sent = {"forward": 0, "backward": 0}

    def hop(self, phase: str, chunk: Tensor, step: int = 1) -> Tensor:
        """Hand a chunk to the rank `step` further and take that of the rank as far before."""
        chunk = chunk.contiguous()
        came = torch.empty_like(chunk)
        there, back = ((self.rank + way) % self.ranks for way in (step, -step))
        going = dist.isend(chunk, dist.get_global_rank(self.group, there), group=self.group)
        dist.recv(came, dist.get_global_rank(self.group, back), group=self.group)
        assert going is not None
        going.wait()
        self.sent[phase] += chunk.numel() * chunk.element_size()
        return came

    def owner(self, steps: int) -> int:
        """Whose chunk is in hand after so many hops."""
        return (self.rank - steps) % self.ranks


def _scores(q: Tensor, key: Tensor, own: Tensor, there: Tensor, scale: float) -> Tensor:
    """Causal fp32 scores `[b n s t]` between positions."""
    scores = torch.einsum("sbnd,tbnd->bnst", q.float(), key.float()) * scale
    return scores.masked_fill(there > own.unsqueeze(1), -torch.inf)


def _merge(out: Tensor, lse: Tensor, scores: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """A step's attention merged into the output `[b n s v]` and its log-sum-exp `[b n s]`, fp32."""
    step = scores.logsumexp(-1)
    whole = torch.logaddexp(lse, step)
    weights = torch.exp(scores - whole.unsqueeze(-1))
    return out * torch.exp(lse - whole).unsqueeze(-1) + torch.einsum("bnst,tbnv->bnsv", weights, value.float()), whole


@dataclass
class _Saved:
    q: Tensor
    out: Tensor
    lse: Tensor
    scale: float

    def back(self, grad: Tensor, key: Tensor, value: Tensor, own: Tensor, there: Tensor) -> tuple[Tensor, ...]:
        """Gradients of q, key and value of one step, fp32."""
        weights = torch.exp(_scores(self.q, key, own, there, self.scale) - self.lse.unsqueeze(-1))
        of_value = torch.einsum("bnst,bnsv->tbnv", weights, grad)
        rows = torch.einsum("bnsv,tbnv->bnst", grad, value.float()) - (grad * self.out).sum(-1).unsqueeze(-1)
        inner = weights * rows * self.scale
        of_q = torch.einsum("bnst,tbnd->sbnd", inner, key.float())
        return of_q, torch.einsum("bnst,sbnd->tbnd", inner, self.q.float()), of_value


class _KeysValues(torch.autograd.Function):
    """Keys and values round a ring. last: backward starts from what came last and turns the other way."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, key: Tensor, value: Tensor, ring: Ring, last: bool) -> Tensor:
        width, scale = key.size(-1), key.size(-1) ** -0.5
        chunk, own = torch.cat((key, value), -1), ring.positions[ring.rank]
        out, lse = _nothing(q, value.size(-1))
        for step in range(ring.ranks):
            there = ring.positions[ring.owner(step)]
            scores = _scores(q, chunk[..., :width], own, there, scale)
            out, lse = _merge(out, lse, scores, chunk[..., width:])
            if step < ring.ranks - 1:
                chunk = ring.hop("forward", chunk)
        ctx.ring, ctx.last, ctx.width, ctx.scale = ring, last, width, scale
        kept = chunk if last else torch.cat((key, value), -1)
        ctx.save_for_backward(q, kept, out, lse)
        return out.permute(2, 0, 1, 3).to(q.dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        q, chunk, out, lse = ctx.saved_tensors
        ring: Ring = ctx.ring
        saved, grad = _Saved(q, out, lse, ctx.scale), gradients[0].float().permute(1, 2, 0, 3)
        of_q, way, going = torch.zeros_like(q, dtype=torch.float32), -1 if ctx.last else 1, torch.zeros(chunk.shape)
        begin, own = (ring.ranks - 1 if ctx.last else 0), ring.positions[ring.rank]
        for step in range(ring.ranks):
            there = ring.positions[ring.owner(begin + way * step)]
            key, value = chunk[..., : ctx.width], chunk[..., ctx.width :]
            step_q, of_key, of_value = saved.back(grad, key, value, own, there)
            of_q += step_q
            going = going + torch.cat((of_key, of_value), -1)
            if step < ring.ranks - 1:
                chunk = ring.hop("backward", chunk, way)
            if step < ring.ranks - 1 or not ctx.last:
                going = ring.hop("backward", going, way)
        return of_q.to(q.dtype), *going.to(q.dtype).split([ctx.width, going.size(-1) - ctx.width], -1), None, None


class _Latents(torch.autograd.Function):
    """Latents with the rotated key round a ring; each hop makes keys and values of them, and again in backward."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, latent: Tensor, weight: Tensor, ring: Ring, rope: int) -> Tensor:
        chunk, own, scale = latent, ring.positions[ring.rank], q.size(-1) ** -0.5
        out, lse = _nothing(q, weight.size(1) - q.size(-1) + rope)
        for step in range(ring.ranks):
            key, value = expand(chunk, weight, rope, q.size(-1) - rope)
            scores = _scores(q, key, own, ring.positions[ring.owner(step)], scale)
            out, lse = _merge(out, lse, scores, value)
            if step < ring.ranks - 1:
                chunk = ring.hop("forward", chunk)
        ctx.ring, ctx.rope, ctx.scale = ring, rope, scale
        ctx.save_for_backward(q, latent, weight, out, lse)
        return out.permute(2, 0, 1, 3).to(q.dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        q, chunk, weight, out, lse = ctx.saved_tensors
        ring: Ring = ctx.ring
        saved, grad = _Saved(q, out, lse, ctx.scale), gradients[0].float().permute(1, 2, 0, 3)
        of_q, of_weight = (torch.zeros_like(each, dtype=torch.float32) for each in (q, weight))
        going = torch.zeros(chunk.shape)
        for step in range(ring.ranks):
            with torch.enable_grad():
                leaves = chunk.float().requires_grad_(), weight.float().requires_grad_()
                key, value = expand(*leaves, ctx.rope, q.size(-1) - ctx.rope)
            there = ring.positions[ring.owner(step)]
            step_q, *handed = saved.back(grad, key.detach(), value.detach(), ring.positions[ring.rank], there)
            of_chunk, step_weight = torch.autograd.grad((key, value), leaves, handed)
            of_q, of_weight, going = of_q + step_q, of_weight + step_weight, going + of_chunk
            if step < ring.ranks - 1:
                chunk = ring.hop("backward", chunk)
            going = ring.hop("backward", going)
        return of_q.to(q.dtype), going.to(q.dtype), of_weight.to(weight.dtype), None, None


def _nothing(q: Tensor, width: int) -> tuple[Tensor, Tensor]:
    s, b, n, _ = q.shape
    return torch.zeros(b, n, s, width), torch.full((b, n, s), -torch.inf)


def expand(latent: Tensor, weight: Tensor, rope: int, nope: int) -> tuple[Tensor, Tensor]:
    """Latent with the rotated key `[s b d_c+r]` and weight `[n k+v d_c]` to key `[s b n k+r]` and value `[s b n v]`."""
    c, k_rope = latent.split([latent.size(-1) - rope, rope], -1)
    k_nope, value = torch.einsum("sbc,nwc->sbnw", c, weight).split([nope, weight.size(1) - nope], -1)
    return torch.cat((k_nope, k_rope.unsqueeze(2).expand(-1, -1, weight.size(0), -1)), -1), value


# ---- the schemes, each `(q, latent, weight) -> output` on this rank's tokens


@dataclass(frozen=True)
class RingRanks:
    """This rank's groups: all of a sequence, its inner group and its outer one, with everybody's positions."""

    everyone: Group
    inner: Group
    outer: Group
    positions: list[Tensor]
    dims: Dims
    rings: list[Ring]

    def ring(self, group: Group, positions: list[Tensor]) -> Ring:
        """A ring whose hops count."""
        self.rings.append(Ring(group, positions))
        return self.rings[-1]


def _ring(last: bool) -> Callable[[RingRanks, Tensor, Tensor, Tensor], Tensor]:
    def run(ranks: RingRanks, q: Tensor, latent: Tensor, weight: Tensor) -> Tensor:
        key, value = expand(latent, weight, ranks.dims.rope, ranks.dims.nope)
        out: Tensor = _KeysValues.apply(q, key, value, ranks.ring(ranks.everyone, ranks.positions), last)
        return out

    return run


def _latent_ring(ranks: RingRanks, q: Tensor, latent: Tensor, weight: Tensor) -> Tensor:
    out: Tensor = _Latents.apply(q, latent, weight, ranks.ring(ranks.everyone, ranks.positions), ranks.dims.rope)
    return out


def _two_levels(last: bool) -> Callable[[RingRanks, Tensor, Tensor, Tensor], Tensor]:
    def run(ranks: RingRanks, q: Tensor, latent: Tensor, weight: Tensor) -> Tensor:
        key, value = expand(latent, weight, ranks.dims.rope, ranks.dims.nope)
        q, key, value = (sequence_to_heads(each, ranks.inner) for each in (q, key, value))
        a = ranks.inner.size()
        positions = [torch.cat(ranks.positions[at : at + a]) for at in range(0, len(ranks.positions), a)]
        out: Tensor = _KeysValues.apply(q, key, value, ranks.ring(ranks.outer, positions), last)
        return heads_to_sequence(out, ranks.inner)

    return run


def _whole(ranks: RingRanks, q: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Attention of own heads over the whole sequence, as it lies after an exchange."""
    everywhere = torch.cat(ranks.positions)
    scores = _scores(q, key, everywhere, everywhere, q.size(-1) ** -0.5)
    return torch.einsum("bnst,tbnv->sbnv", scores.softmax(-1), value.float()).to(q.dtype)


def _headless(ranks: RingRanks, q: Tensor, latent: Tensor, weight: Tensor) -> Tensor:
    dims = ranks.dims
    key, value = expand(latent, weight, dims.rope, dims.nope)
    q, k_nope, value = (sequence_to_heads(each, ranks.everyone) for each in (q, key[..., : dims.nope], value))
    k_rope = gather(latent[..., dims.kv_lora_rank :], ranks.everyone).unsqueeze(2).expand(-1, -1, k_nope.size(2), -1)
    return heads_to_sequence(_whole(ranks, q, torch.cat((k_nope, k_rope), -1), value), ranks.everyone)


def _padded(ranks: RingRanks, q: Tensor, latent: Tensor, weight: Tensor) -> Tensor:
    dims = ranks.dims
    key, value = expand(latent, weight, dims.rope, dims.nope)
    wide = nn.functional.pad(value, (0, dims.nope + dims.rope - dims.value))
    q, key, wide = (sequence_to_heads(each, ranks.everyone) for each in (q, key, wide))
    return heads_to_sequence(_whole(ranks, q, key, wide), ranks.everyone)[..., : dims.value]


def _own_queries(ranks: RingRanks, q: Tensor, latent: Tensor, weight: Tensor) -> Tensor:
    """The latent gathered, every rank its own queries and all heads."""
    key, value = expand(gather(latent, ranks.everyone), weight, ranks.dims.rope, ranks.dims.nope)
    scores = _scores(q, key, ranks.positions[ranks.everyone.rank()], torch.cat(ranks.positions), q.size(-1) ** -0.5)
    return torch.einsum("bnst,tbnv->sbnv", scores.softmax(-1), value.float()).to(q.dtype)


SCHEMES: dict[str, Callable[[RingRanks, Tensor, Tensor, Tensor], Tensor]] = {
    "ring": _ring(last=True),
    "ring-own": _ring(last=False),
    "usp": _two_levels(last=False),
    "a2a-p2p": _two_levels(last=True),
    "latent-ring": _latent_ring,
    "ulysses-headless": _headless,
    "ulysses-padded": _padded,
    "latent-key-gather": _own_queries,
}


# ---- running them


def run_rings(dims: Dims, *, ranks: int, inside: int, seq_len: int, batch: int = 1) -> dict[str, RingRun]:
    """Every scheme on real ranks, fp32, and one rank's attention under the name `alone`."""
    with tempfile.TemporaryDirectory() as folder:
        multiprocessing.set_forkserver_preload(["torch", __name__])
        given = (ranks, inside, dims, seq_len, batch, folder)
        start_processes(_main, given, nprocs=ranks, start_method="forkserver")
        found: dict[str, RingRun] = torch.load(Path(folder) / "runs", weights_only=False)
    return found


def _main(rank: int, ranks: int, inside: int, dims: Dims, seq_len: int, batch: int, folder: str) -> None:
    torch.set_num_threads(1)
    store = dist.FileStore(f"{folder}/store", ranks)  # type: ignore[attr-defined]
    dist.init_process_group("gloo", rank=rank, world_size=ranks, store=store, timeout=TIMEOUT)
    inner = [dist.new_group(list(range(at, at + inside))) for at in range(0, ranks, inside)]
    outer = [dist.new_group(list(range(at, ranks, inside))) for at in range(inside)]
    everyone = dist.new_group(list(range(ranks)))
    chunks = torch.arange(seq_len).chunk(2 * ranks)
    positions = [torch.cat((chunks[at], chunks[2 * ranks - 1 - at])) for at in range(ranks)]
    q, latent, weight, gradient = _data(dims, seq_len, batch)
    found = {"alone": _alone(dims, q, latent, weight, gradient)}
    for name, scheme in SCHEMES.items():
        groups = RingRanks(everyone, inner[rank // inside], outer[rank % inside], positions, dims, [])
        own_q, own_latent = (each[positions[rank]].clone().requires_grad_() for each in (q, latent))
        leaf = weight.clone().requires_grad_()
        out = scheme(groups, own_q, own_latent, leaf)
        out.backward(gradient[positions[rank]])
        found[name] = _gathered(groups, out, [own_q, own_latent, leaf])
    if rank == 0:
        torch.save(found, Path(folder) / "runs")
    dist.barrier()
    dist.destroy_process_group()


def _data(dims: Dims, seq_len: int, batch: int) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(0)
    shapes = (
        (seq_len, batch, dims.heads, dims.nope + dims.rope),
        (seq_len, batch, dims.kv_lora_rank + dims.rope),
        (dims.heads, dims.nope + dims.value, dims.kv_lora_rank),
        (seq_len, batch, dims.heads, dims.value),
    )
    return tuple(torch.randn(shape, generator=generator) for shape in shapes)


def _alone(dims: Dims, q: Tensor, latent: Tensor, weight: Tensor, gradient: Tensor) -> RingRun:
    leaves = [each.clone().requires_grad_() for each in (q, latent, weight)]
    key, value = expand(leaves[1], leaves[2], dims.rope, dims.nope)
    at = torch.arange(q.size(0))
    out = torch.einsum("bnst,tbnv->sbnv", _scores(leaves[0], key, at, at, q.size(-1) ** -0.5).softmax(-1), value)
    out.backward(gradient)
    return RingRun({"output": out.detach(), **_named(leaves)}, {})


def _named(leaves: list[Tensor]) -> dict[str, Tensor]:
    found = {}
    for name, leaf in zip(("query", "latent", "weight"), leaves, strict=True):
        assert leaf.grad is not None
        found[f"gradient of {name}"] = leaf.grad
    return found


def _gathered(groups: RingRanks, out: Tensor, leaves: list[Tensor]) -> RingRun:
    """Every rank's tokens back in order, the weight's gradients summed, and what hops sent."""
    own = {"output": out.detach(), **_named(leaves)}
    order, tensors = torch.cat(groups.positions).argsort(), {}
    for name, tensor in own.items():
        parts = [torch.empty_like(tensor.contiguous()) for _ in range(groups.everyone.size())]
        dist.all_gather(parts, tensor.contiguous(), group=groups.everyone)
        tensors[name] = torch.stack(parts).sum(0) if name.endswith("weight") else torch.cat(parts)[order]
    counts: list[Any] = [None] * groups.everyone.size()
    dist.all_gather_object(counts, groups.rings[0].sent if groups.rings else {}, group=groups.everyone)
    sent = {phase: tuple(each.get(phase, 0) for each in counts) for phase in ("forward", "backward")}
    return RingRun(tensors, sent)
