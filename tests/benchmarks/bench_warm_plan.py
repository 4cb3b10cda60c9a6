"""Warm calls in a process that has planned before: three forms of a block, a whole model, six devices of a fit."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

from tests.benchmarks.figure import Figure

CALLS = 200
BLOCK: dict[str, Any] = {"model": "deepseek-v3", "device": "910b-64gb", "scope": "attention", "seq_len": 16384, "sp": 8}
SIX = ["910b-64gb", "a100-80gb", "h100-80gb", "h800-80gb", "h200-141gb", "b200-180gb"]


def measure() -> list[Figure]:
    import mla_cost  # not before the cold starts, whose peaks count from this process
    from mla_cost import api
    from mla_cost.inputs import catalog
    from mla_cost.inputs.plan_files import settings as read

    whole = read(catalog.plan_path("deepseek-v3-2048-h800"), {}, {}, {})
    fits: dict[str, Any] = {"device": SIX, "seq_len": 16384, "sp": 8}
    return [
        warm("warm plan of a block, 3 forms", lambda: mla_cost.plan(**BLOCK), CALLS, 2),
        warm("warm plan of a model, 3 forms", lambda: api.answer(whole), CALLS // 4, 10),
        warm("fit, 3 forms on 6 devices", lambda: mla_cost.longest(**fits), 3, 2000),
    ]


def warm(name: str, call: Callable[[], object], times: int, budget: float) -> Figure:
    """Milliseconds of a call; the first fills caches and is not counted."""
    call()
    spent = []
    for _ in range(times):
        began = time.perf_counter()
        call()
        spent.append((time.perf_counter() - began) * 1e3)
    return Figure(name, statistics.median(spent), min(spent), max(spent), "ms", budget)
