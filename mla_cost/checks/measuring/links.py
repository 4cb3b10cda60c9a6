"""Micro-benchmarks of collectives: every kind over a few sizes, in processes of their own."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch
import torch.distributed as dist

from mla_cost.checks.measuring.clock import Clock, keep_freed_memory
from mla_cost.checks.reference.exchange import all_gather, reduce_scatter
from mla_cost.checks.reference.ranks import start_ranks

BACKENDS = {"cpu": "gloo", "cuda": "nccl", "npu": "hccl"}
SIZES = (2**12, 2**18, 2**20, 3 * 2**21)
KINDS = ("all_to_all", "all_gather", "reduce_scatter", "all_reduce", "point_to_point")


class TimedExchange(NamedTuple):
    """One collective: bytes that a rank sends, and the seconds that it takes."""

    kind: str
    ranks: int
    wire: float
    seconds: float


def exchanges(device: str, ranks: int, quick: bool = False) -> list[TimedExchange]:
    """Every kind at every size, as its slowest rank sees it."""
    with tempfile.TemporaryDirectory() as folder:
        start_ranks(_main, ranks, device, quick, folder)
        each = [[TimedExchange(*one) for one in torch.load(Path(folder) / str(rank))] for rank in range(ranks)]
    return [max(found, key=lambda one: one.seconds) for found in zip(*each, strict=True)]


def joined(rank: int, ranks: int, device: str, folder: str) -> None:
    """Become a rank of a group over the device's own library."""
    torch.set_num_threads(1)
    keep_freed_memory()
    if device != "cpu":
        getattr(torch, device).set_device(rank)
    store = dist.FileStore(f"{folder}/store", ranks)  # type: ignore[attr-defined]
    dist.init_process_group(BACKENDS[device], rank=rank, world_size=ranks, store=store)


def _main(rank: int, ranks: int, device: str, quick: bool, folder: str) -> None:
    joined(rank, ranks, device, folder)
    torch.save([tuple(each) for each in timed_here(rank, ranks, device, quick)], Path(folder) / str(rank))
    dist.barrier()
    dist.destroy_process_group()


def timed_here(rank: int, ranks: int, device: str, quick: bool) -> list[TimedExchange]:
    """Every kind at every size, as this rank sees it; all ranks call this together."""
    clock = Clock(device, rounds=4 if quick else 8)
    return [_timed(kind, size, ranks, rank, clock) for kind in KINDS for size in (SIZES[1::2] if quick else SIZES)]


def _timed(kind: str, size: int, ranks: int, rank: int, clock: Clock) -> TimedExchange:
    """Of a tensor of so many bytes, after others have passed through the caches; the shortest of the rounds."""
    whole = torch.randn(size // 4, device=clock.device)
    part = torch.randn(size // 4 // ranks, device=clock.device)
    run, wire = _calls(whole, part, ranks, rank)[kind]
    return TimedExchange(kind, ranks, wire, clock.cold(run))


def _calls(
    whole: torch.Tensor, part: torch.Tensor, ranks: int, rank: int
) -> dict[str, tuple[Callable[[], object], float]]:
    """Each kind as it is called, and what a rank sends of it."""
    size, others = whole.nbytes, ranks - 1
    received = torch.empty_like(whole)

    def passed_on() -> None:
        calls = [
            dist.P2POp(dist.isend, whole, (rank + 1) % ranks),
            dist.P2POp(dist.irecv, received, (rank - 1) % ranks),
        ]
        for work in dist.batch_isend_irecv(calls):
            work.wait()

    return {
        "all_to_all": (lambda: dist.all_to_all_single(received, whole), size * others / ranks),
        "all_gather": (lambda: all_gather(received, part), size * others / ranks),
        "reduce_scatter": (lambda: reduce_scatter(part, whole), size * others / ranks),
        "all_reduce": (lambda: dist.all_reduce(received), 2 * size * others / ranks),
        "point_to_point": (passed_on, float(size)),
    }
