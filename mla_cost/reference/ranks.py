"""Real ranks: processes on this machine that exchange over gloo, at small dims.

One launch serves many specs. Each spec runs on the first `sp` ranks with the same parameters, input and output
gradient, whatever its form and degree, so that any two runs can be compared tensor by tensor.
"""

from __future__ import annotations

import multiprocessing
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.multiprocessing.spawn import start_processes

from mla_cost.reference.forms import initialise, make_stack
from mla_cost.reference.measure import Collective, record
from mla_cost.reference.spec import DTYPES, Spec

TIMEOUT = timedelta(seconds=120)  # a rank that died leaves the others in a collective


@dataclass(frozen=True)
class RankRun:
    """One spec on its ranks: whole tensors, as a single rank would have them, in fp32.

    tensors      "output" and "input gradient" `[S b h]` of all ranks together, and for each parameter its gradient,
                 summed over the ranks because each holds a copy
    collectives  those called, in order, by each rank
    """

    spec: Spec
    tensors: dict[str, Tensor]
    collectives: tuple[tuple[Collective, ...], ...]

    def differences(self, other: RankRun) -> dict[str, float]:
        """Per tensor, the largest difference to `other` over the largest magnitude in `other`."""
        return {name: _relative(tensor, other.tensors[name]) for name, tensor in self.tensors.items()}

    def identical(self, other: RankRun) -> bool:
        """Whether every tensor agrees bit for bit."""
        return all(torch.equal(tensor, other.tensors[name]) for name, tensor in self.tensors.items())


def run_ranks(specs: Sequence[Spec], seed: int = 0) -> list[RankRun]:
    """Run every spec on as many processes as its `sp` asks for; one launch for all of them."""
    with tempfile.TemporaryDirectory() as folder:
        ranks = max(spec.sp for spec in specs)
        # Ranks are forked from a server that has torch loaded: starting eight takes one import, not eight.
        multiprocessing.set_forkserver_preload(["torch", __name__])
        start_processes(_rank_main, (ranks, list(specs), seed, folder), nprocs=ranks, start_method="forkserver")
        # Written by our own rank 0 a moment ago, and it holds our dataclasses.
        runs: list[RankRun] = torch.load(Path(folder) / "runs", weights_only=False)
    return runs


def _relative(tensor: Tensor, reference: Tensor) -> float:
    return float((tensor - reference).abs().max() / reference.abs().max())


def _rank_main(rank: int, ranks: int, specs: Sequence[Spec], seed: int, folder: str) -> None:
    torch.set_num_threads(1)  # ranks share the cores
    store = dist.FileStore(f"{folder}/store", ranks)  # type: ignore[attr-defined]
    dist.init_process_group("gloo", rank=rank, world_size=ranks, store=store, timeout=TIMEOUT)
    # Every rank must take part in making every group, member or not.
    groups = {sp: dist.new_group(range(sp)) for sp in sorted({spec.sp for spec in specs})}
    runs = [_run(spec, groups[spec.sp], seed) for spec in specs if rank < spec.sp]
    if rank == 0:
        torch.save(runs, Path(folder) / "runs")
    dist.barrier()
    dist.destroy_process_group()


def _run(spec: Spec, group: dist.ProcessGroup, seed: int) -> RankRun:
    block = make_stack(spec, group if spec.sp > 1 else None)
    initialise(block, seed)
    x, gradient = (part.chunk(spec.sp)[group.rank()] for part in _data(spec, seed))
    tensors = _numbers(block, x.clone().requires_grad_(), gradient, group)
    block.zero_grad()
    called = record(block, [x.clone().requires_grad_()]).collectives
    everyone: list[tuple[Collective, ...]] = [()] * spec.sp
    dist.all_gather_object(everyone, called, group=group)
    return RankRun(spec, tensors, tuple(everyone))


def _data(spec: Spec, seed: int) -> tuple[Tensor, Tensor]:
    """The whole input and the gradient of the whole output, `[S b h]` each."""
    generator = torch.Generator().manual_seed(seed + 1)
    shape = (spec.seq_len, spec.micro_batch, spec.dims.hidden)
    x, gradient = (torch.randn(shape, generator=generator).to(DTYPES[spec.dtype]) for _ in range(2))
    return x, gradient


def _numbers(block: nn.Module, x: Tensor, gradient: Tensor, group: dist.ProcessGroup) -> dict[str, Tensor]:
    """Outputs and gradients of the sharded block, put together as a single rank has them."""
    out = block(x)
    out.backward(gradient)
    assert x.grad is not None
    tensors = {"output": _whole(out.detach(), group), "input gradient": _whole(x.grad, group)}
    for name, parameter in block.named_parameters():
        assert parameter.grad is not None, name
        total = parameter.grad.float()
        dist.all_reduce(total, group=group)
        tensors[name] = total
    return tensors


def _whole(part: Tensor, group: dist.ProcessGroup) -> Tensor:
    parts = [torch.empty(part.shape) for _ in range(group.size())]
    dist.all_gather(parts, part.float().contiguous(), group=group)
    return torch.cat(parts)
