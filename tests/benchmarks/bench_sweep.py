"""Points per second of a sweep, timed to a finished `.to_numpy()` with every column summed, against plans in a loop.

Every run is a fresh process with cold caches: catalogue, programs and folds are read and compiled inside the time,
and so is the check of every run by the int evaluator. The interpreter's start and the import of numpy are not.
llm-analysis from PyPI is timed per configuration where it is installed.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tests.benchmarks.figure import Figure

RUNS = 5
BUDGETS_NS = {"attention": 1e9 / 3_000_000, "model": 1e9 / 60_000}
TIMED = "model"  # the scope that has columns of time, within its budget too
LOOPS = {"attention": 30, "model": 10}
# 3 forms x 256 sequences x 4 sp x 16 head counts x 32 latent widths x 2 devices
ATTENTION = {
    "seq_len": "4096..265216+1024",
    "sp": "1,2,4,8",
    "dims.heads": "8..128+8",
    "dims.kv_lora_rank": "64..1056+32",
    "form": "all",
}
# 3 forms x 2 recomputations x 128 sequences x 4 sp x 4 tp x 2 pp x 2 ep x 2 dp x 2 counts of micro-batches x 2 devices
MODEL = {
    "form": "all",
    "remat": "none,full",
    "seq_len": "2048..262144+2048",
    "sp": "1..8*2",
    "tp": "1..8*2",
    "pp": "1,61",
    "ep": "8,64",
    "dp": "64,128",
    "micro_batches": "8,64",
}
GRIDS = {"attention": ATTENTION, "model": MODEL}


def once(workers: int, scope: str, *, timed: bool) -> dict[str, float]:
    """One sweep in this process, from nothing to sums of all columns."""
    import numpy as np

    import mla_cost.studies.sweep  # the import is not timed

    began, work = time.perf_counter(), time.process_time()
    study = mla_cost.studies.sweep.sweep(over=GRIDS[scope], scope=scope, time=timed)
    columns = study.to_numpy(workers=workers)
    exact = {"i": np.int64, "f": np.float64}
    total = sum(float(column.sum(dtype=exact[column.dtype.kind])) for column in columns.values())
    spent = {"wall": time.perf_counter() - began, "cpu": time.process_time() - work}
    assert total > 0
    return {**spent, "points": len(study)}


def runs(workers: int, scope: str, *, timed: bool = False) -> list[dict[str, float]]:
    """Fresh processes; one worker has one core, whatever a BLAS may wish."""
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    command = [sys.executable, "-m", "tests.benchmarks.bench_sweep", str(workers), scope, *["time"] * timed]
    root = Path(__file__).parents[2]
    texts = [subprocess.check_output(command, cwd=root, env=os.environ | threads, text=True) for _ in range(RUNS)]
    return [json.loads(text) for text in texts]


def per_point(name: str, found: list[dict[str, float]], clock: str, budget: float | None = None) -> Figure:
    """Nanoseconds per point."""
    values = [run[clock] / run["points"] * 1e9 for run in found]
    return Figure(name, statistics.median(values), min(values), max(values), "ns", budget)


def plans(scope: str) -> list[float]:
    """Nanoseconds per point of `plan` in a warm loop: three forms on two devices a call."""
    import mla_cost

    degrees: dict[str, Any] = {"tp": 2, "ep": 8, "dp": 64, "micro_batches": 8} if scope == "model" else {}

    def call(seq_len: int) -> float:
        began = time.perf_counter()
        points = len(mla_cost.plan(seq_len=seq_len, sp=8, scope=scope, **degrees).results)
        return (time.perf_counter() - began) / points * 1e9

    call(4096)
    return [call(4096 + 1024 * at) for at in range(LOOPS[scope])]


# one configuration: widths and degrees, then the activations of one layer, or a whole training run of equal dense
# layers; it knows no MLA, takes no expert as narrow as these models have, and gives no device's verdict
OTHERS = """
import json, logging, sys, time
logging.disable(logging.CRITICAL)
from llm_analysis.analysis import LLMAnalysis
from llm_analysis.config import GPUConfig, ModelConfig, ParallelismConfig
device = GPUConfig("a", 80_000, 2000, 300, 8e-6, 312)  # it refuses to go on where a run does not fit
def attention(seq_len):
    model = ModelConfig(name="m", num_layers=1, n_head=128, hidden_dim=7168, vocab_size=129280)
    LLMAnalysis(model, device).get_activation_memory_per_layer(1, seq_len, is_inference=False)
def model(seq_len):
    model = ModelConfig(name="m", num_layers=61, n_head=128, hidden_dim=7168, vocab_size=129280, max_seq_len=1 << 20)
    degrees = ParallelismConfig(tp_size=2, pp_size=1, dp_size=64)
    asked = dict(batch_size_per_gpu=1, gradient_accumulation_steps=8, seq_len=seq_len, total_num_tokens=1e9)
    LLMAnalysis(model, device, parallelism_config=degrees).training(**asked)
def timed(call, seq_len):
    began = time.perf_counter()
    call(seq_len)
    return (time.perf_counter() - began) * 1e9
asked = {"attention": attention, "model": model}[sys.argv[1]]
timed(asked, 4096)
print(json.dumps([timed(asked, 4096 + 1024 * at) for at in range(200)]))
"""


def others(scope: str) -> list[float] | None:
    """Nanoseconds per configuration of llm-analysis; None where it is not installed.

    It pins old libraries, so it may live in an environment of its own: LLM_ANALYSIS_PYTHON names its interpreter.
    """
    python = os.environ.get("LLM_ANALYSIS_PYTHON") or (sys.executable if find_spec("llm_analysis") else None)
    if python is None:
        return None
    text = subprocess.check_output([python, "-c", OTHERS, scope], text=True, stderr=subprocess.DEVNULL)
    found: list[float] = json.loads(text.splitlines()[-1])
    return found


def measure() -> list[Figure]:
    """Time per point on one core and on all, then how many times longer others take, for each scope."""
    return [figure for scope in GRIDS for figure in measured(scope)]


def measured(scope: str) -> list[Figure]:
    """The figures of one scope."""
    theirs = others(scope)
    one, every = runs(1, scope), runs(os.cpu_count() or 1, scope)
    sweep = statistics.median(run["wall"] / run["points"] * 1e9 for run in every)
    found = [
        per_point(f"{scope} sweep, 1 core", one, "wall", BUDGETS_NS[scope]),
        per_point("  the same, CPU time", one, "cpu", BUDGETS_NS[scope]),
        per_point(f"{scope} sweep, {os.cpu_count()} cores", every, "wall"),
        ratio("plan in a loop / sweep", plans(scope), sweep),
    ]
    if scope == TIMED:
        found.append(per_point("  with time, 1 core, CPU time", runs(1, scope, timed=True), "cpu", BUDGETS_NS[scope]))
    if theirs is None:
        none = float("nan")
        return [*found, Figure("(llm-analysis not installed)", none, none, none, "x")]
    return [*found, ratio("llm-analysis / sweep", theirs, sweep)]


def ratio(name: str, theirs: list[float], ours: float) -> Figure:
    """How many times longer a point takes elsewhere."""
    return Figure(name, statistics.median(theirs) / ours, min(theirs) / ours, max(theirs) / ours, "x")


if __name__ == "__main__":
    asked = int(sys.argv[1])
    if asked == 1 and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    sys.stdout.write(json.dumps(once(asked, sys.argv[2], timed="time" in sys.argv)))
