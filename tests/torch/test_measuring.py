"""Micro-benchmarks make a device file, and what it foretells is of the size that the executor takes."""

from __future__ import annotations

import pytest

import mla_cost

torch = pytest.importorskip("torch")

from mla_cost.checks.measuring import device_file, fitting, kernels  # noqa: E402
from mla_cost.checks.measuring.clock import Clock  # noqa: E402
from mla_cost.checks.measuring.kernels import samples  # noqa: E402
from mla_cost.checks.reference.ranks import make_step  # noqa: E402
from mla_cost.checks.reference.spec import Dims  # noqa: E402
from mla_cost.checks.validation.cells import made  # noqa: E402
from mla_cost.checks.validation.times import COMMON, foretold  # noqa: E402

DIMS = Dims(hidden=256, heads=4, q_lora_rank=128, kv_lora_rank=64, nope=32, rope=16, value=32)


@pytest.fixture(scope="module")
def measured():
    """One quick pass over small shapes."""
    few = {"LINEAR": kernels.LINEAR[:3], "BATCHED": kernels.BATCHED[:2], "ELEMENTS": kernels.ELEMENTS[:2]}
    kept = {name: getattr(kernels, name) for name in few}
    for name, value in few.items():
        setattr(kernels, name, value)
    try:
        bench = device_file.start("cpu", "fp32", quick=True)
        return device_file.made(list(samples(bench)), [], "cpu", "fp32", 1)
    finally:
        for name, value in kept.items():
            setattr(kernels, name, value)


def test_the_file_is_a_device_that_a_plan_takes(measured, tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(measured.text(), encoding="utf-8")
    found = mla_cost.plan(device=str(path), scope="attention", form="laga", kernel="eager", dtype="fp32", sp=1)
    time = found.results[0].time
    assert time is not None
    assert time.total.low < time.total.seconds < time.total.high
    assert {it.work for it in measured.samples} == {"launch", "gemm", "grouped_gemm", "attention", *fitting.MEMORY}


def test_blocks_take_about_as_long_as_foretold(measured):
    """Wide bounds, since others use the machine: `mla-cost validate --time` has the narrow ones."""
    cells = made({**COMMON, "dims": DIMS, "form": form, "seq_len": 256} for form in ("explicit", "absorbed"))
    seconds = Clock(rounds=3).best_of_each([make_step(cell) for cell in cells])
    for cell, one in zip(cells, seconds, strict=True):
        assert 1 / 4 < foretold(cell, measured.config()) / one < 4
