"""A warm `mla_cost.plan` call: three forms on one device, in a process that has planned before."""

from __future__ import annotations

import statistics
import time

from tests.benchmarks.figure import Figure

CALLS = 200


def measure() -> list[Figure]:
    import mla_cost  # not before the cold starts, whose peaks count from this process

    def call() -> float:
        began = time.perf_counter()
        mla_cost.plan(model="deepseek-v3", device="910b-64gb", seq_len=16384, sp=8)
        return (time.perf_counter() - began) * 1e3

    first = call()
    warm = [call() for _ in range(CALLS)]
    return [
        Figure("warm plan, 3 forms", statistics.median(warm), min(warm), max(warm), "ms", 2),
        Figure("first plan in a process", first, first, first, "ms"),
    ]
