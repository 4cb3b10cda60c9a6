"""A search of more than 100,000 candidates, from nothing to the ranked answer.

Every run is a fresh process with cold caches: catalogue, programs and folds are read and compiled inside the time, and
so are the checks against `plan`. The interpreter's start and the import of numpy are not.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Final

from tests.benchmarks.figure import Figure

RUNS = 3
BUDGET_SECONDS = 10
LEAST = 100_000
QUESTION: Final[dict[str, Any]] = {
    "model": "deepseek-v3",
    "device": "h800-80gb",
    "devices": 256,
    "global_batch": 2048,
    "seq_len": 4096,
}


def once() -> dict[str, float]:
    """One search in this process."""
    from mla_cost.searching import search  # the import is not timed

    began = time.perf_counter()
    found = search(**QUESTION)
    spent = time.perf_counter() - began
    assert found.candidates >= LEAST
    assert found.best is not None
    return {"wall": spent, "candidates": found.candidates}


def runs() -> list[dict[str, float]]:
    """Fresh processes."""
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    command = [sys.executable, "-m", "tests.benchmarks.bench_search"]
    root = Path(__file__).parents[2]
    texts = [subprocess.check_output(command, cwd=root, env=os.environ | threads, text=True) for _ in range(RUNS)]
    return [json.loads(text) for text in texts]


def measure() -> list[Figure]:
    """Seconds of the whole search, and microseconds of a candidate."""
    found = runs()
    walls = [run["wall"] for run in found]
    each = [run["wall"] / run["candidates"] * 1e6 for run in found]
    name = f"search, {found[0]['candidates']:,.0f} plans"
    return [
        Figure(name, statistics.median(walls), min(walls), max(walls), "s", BUDGET_SECONDS),
        Figure("  the same, a plan", statistics.median(each), min(each), max(each), "us"),
    ]


if __name__ == "__main__":
    sys.stdout.write(json.dumps(once()))
