"""What a process that prices much keeps: every cache is bounded, and the programs in it are what weighs."""

from __future__ import annotations

import importlib
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import mla_cost

# caches without a bound: what they hold is bounded by files and texts of the package itself, or by facts of dims
FEW = {"caches", "catalog", "dims", "exporters", "fused", "importers", "program", "tensors"}


def test_caches_are_bounded():
    found = []
    for module in pkgutil.walk_packages(mla_cost.__path__, "mla_cost."):
        if "reference" in module.name or "__main__" in module.name:
            continue
        for name, it in vars(importlib.import_module(module.name)).items():
            info = getattr(it, "cache_info", None)
            if info is not None and it.__module__ == module.name and info().maxsize is None:
                found.append((module.name.rsplit(".", 1)[1], name))
    assert {module for module, _ in found} <= FEW, found


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads Linux's own account of memory")
def test_mixed_calls_stay_small(checkout):
    """A small part of `python -m tests.benchmarks.mixed 10000`, which has the same limit."""
    run = [sys.executable, "-m", "tests.benchmarks.mixed", "60"]
    done = subprocess.run(run, cwd=checkout, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
