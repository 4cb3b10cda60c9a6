"""A search of more than 100,000 plans, from nothing to the ranked answer, and the time of 100,000 of them.

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
    from mla_cost.studies.search import search  # the import is not timed

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
    """Seconds of the whole search, and of its share for so many plans as the budget is for."""
    found = runs()
    walls = [run["wall"] for run in found]
    shares = [run["wall"] / run["candidates"] * LEAST for run in found]
    return [
        Figure(f"search, {found[0]['candidates']:,.0f} plans", statistics.median(walls), min(walls), max(walls), "s"),
        Figure(f"  the same, {LEAST:,}", statistics.median(shares), min(shares), max(shares), "s", BUDGET_SECONDS),
    ]


if __name__ == "__main__":
    sys.stdout.write(json.dumps(once()))
