"""How long a call takes, on machines that others may use at the same time.

On a CPU with one thread a call takes the time that the cores worked for this process: what waits for its turn, or for
another rank, is left out. Elsewhere it is elapsed time, once the device has ended what it was given.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Sequence
from math import ceil
from typing import NamedTuple

import torch

Run = Callable[[], object]
CACHES = 2**25  # bytes that are written between two cold calls
_KEEP = ((-3, 1 << 30), (-1, (1 << 31) - 1))  # glibc's mallopt: M_MMAP_THRESHOLD, M_TRIM_THRESHOLD


class Clock(NamedTuple):
    """Where calls run, and how often each is timed. least: seconds that a timing of short calls lasts."""

    device: str = "cpu"
    rounds: int = 7
    least: float = 1e-3

    def now(self) -> float:
        """Seconds so far."""
        if self.device == "cpu":
            return time.process_time()
        getattr(torch, self.device).synchronize()
        return time.perf_counter()

    def hot(self, run: Run) -> float:
        """Seconds of one call among many of its kind, whose operands lie in caches; the shortest of the rounds."""
        run()
        start = self.now()
        run()
        times = max(1, ceil(self.least / max(self.now() - start, 1e-9)))
        return min(self._round(run, times) for _ in range(self.rounds))

    def cold(self, run: Run) -> float:
        """Seconds of one call whose operands no cache holds any more; the shortest of the rounds.

        What others add only ever lengthens a call.
        """
        run()
        other = torch.empty(CACHES // 4, device=self.device)
        return min(self._cold_round(run, other) for _ in range(self.rounds))

    def _cold_round(self, run: Run, other: torch.Tensor) -> float:
        other.fill_(1.0)
        return self._round(run, 1)

    def best_of_each(self, runs: Sequence[Run]) -> list[float]:
        """The shortest round of each, all taking turns, so that what disturbs one disturbs all."""
        for run in runs:
            run()
        rounds = [[self._round(run, 1) for run in runs] for _ in range(self.rounds)]
        return [min(each) for each in zip(*rounds, strict=True)]

    def _round(self, run: Run, times: int) -> float:
        start = self.now()
        for _ in range(times):
            run()
        return (self.now() - start) / times


def keep_freed_memory() -> None:
    """Let the C library hand freed memory out again instead of giving it back, as allocators of devices do.

    Otherwise every large result is paid for with page faults, which cost more than what is computed. Where there is no
    such library, nothing happens.
    """
    try:
        library = ctypes.CDLL(None)
        for name, value in _KEEP:
            library.mallopt(name, value)
    except (OSError, AttributeError):
        return
