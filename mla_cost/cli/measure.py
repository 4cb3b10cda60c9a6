"""`mla-cost measure`: micro-benchmarks of this machine, and a device file of them."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Literal

import typer


def measure(
    save: Annotated[
        Path | None,
        typer.Option("--save", "-o", metavar="FILE.yaml", help="Write the device file; else it is printed."),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Fewer shapes and one pass: some seconds.")] = False,
    dtype: Annotated[
        Literal["fp32", "bf16", "fp16"] | None,
        typer.Option(help="What products run in: fp32 on a CPU, bf16 elsewhere by default."),
    ] = None,
    ranks: Annotated[int, typer.Option(min=1, max=8, help="Processes that exchange; 1 leaves collectives out.")] = 2,
) -> None:
    """Time every class of work and every collective in torch on this machine, and write a device file of it."""
    from mla_cost.cli import plotting, progress
    from mla_cost.errors import InputError, install

    if find_spec("torch") is None:
        raise InputError(f"measure runs torch, which is not installed: {install('reference')}")
    from mla_cost.checks.measuring import device_file

    here = device_file.here()
    with progress.shown("measuring") as watch:
        found = device_file.measure(
            here, dtype or ("fp32" if here == "cpu" else "bf16"), ranks, quick=quick,
            watch=lambda words: watch(words, 0, 1),
        )  # fmt: skip
    found.config()
    if save is None:
        sys.stdout.write(found.text())
        return
    with plotting.writing(save):
        save.write_text(found.text(), encoding="utf-8")
    sys.stdout.write(f"{len(found.samples)} kernels and {len(found.exchanges)} collectives timed: {save}\n")
