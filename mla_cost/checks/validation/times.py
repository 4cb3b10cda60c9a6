"""Time: what micro-benchmarks and the fold of work predict, against the executor in the same run.

The machine is measured by shapes that no cell has; every cell is then predicted from that and run. Timings are
shortest ones, over passes that take turns with the micro-benchmarks, so that both see the same machine. On a CPU they
are the time of its cores for the process (mla_cost/checks/measuring/clock.py).
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from mla_cost.checks.measuring import device_file
from mla_cost.checks.measuring.clock import Clock
from mla_cost.checks.measuring.kernels import Sample, samples
from mla_cost.checks.measuring.links import joined, timed_here
from mla_cost.checks.reference.ranks import make_step, start_ranks
from mla_cost.checks.reference.spec import FORMS, Dims, Spec
from mla_cost.checks.reference.tp import make_groups
from mla_cost.checks.validation.cells import made, name
from mla_cost.checks.validation.predict import predicted
from mla_cost.inputs.config import DeviceConfig
from mla_cost.mesh.degrees import Parallel
from mla_cost.pricing import times
from mla_cost.timing.ceilings import ENDS, End, ceilings
from mla_cost.timing.placement import DEFAULT_ORDER, placement
from mla_cost.timing.work import LinkTraffic

BARS = 0.15, 0.30  # of the median cell, of the worst
SMALL = Dims(hidden=512, heads=8, q_lora_rank=256, kv_lora_rank=128, nope=64, rope=32, value=64)
WIDE = Dims(hidden=768, heads=4, q_lora_rank=None, kv_lora_rank=192, nope=96, rope=32, value=96)
COMMON: dict[str, Any] = {
    "dims": SMALL, "dtype": "fp32", "norm": "composite", "seq_len": 512, "sp": 1,
    "ffn": 1024, "experts": 8, "experts_per_token": 2, "expert_ffn": 256, "shared_ffn": 256,
}  # fmt: skip
Watch = Callable[[str], None]


class TimedCell(NamedTuple):
    """A cell: seconds predicted at both ends of the band and in its middle, and measured."""

    name: str
    group: str
    form: str
    predicted: float
    low: float
    high: float
    measured: float

    @property
    def error(self) -> float:
        """Predicted over measured, less one."""
        return self.predicted / self.measured - 1


class TimeReport(NamedTuple):
    """Every cell, and how often the order of two forms was right where it was told."""

    cells: tuple[TimedCell, ...]
    right: int
    told: int
    close: int

    @property
    def median(self) -> float:
        """Of the errors, without their signs."""
        return median(abs(cell.error) for cell in self.cells)

    @property
    def worst(self) -> float:
        """The largest error."""
        return max(abs(cell.error) for cell in self.cells)

    @property
    def within(self) -> bool:
        """Whether the bars are met, and no order was told wrongly."""
        return self.median <= BARS[0] and self.worst <= BARS[1] and self.right == self.told

    def to_json(self) -> str:
        """As `mla-cost validate --time --format json` prints it."""
        cells = [{**cell._asdict(), "error": cell.error} for cell in self.cells]
        orders = {"right": self.right, "told": self.told, "too_close_to_call": self.close}
        found = {"median_error": self.median, "worst_error": self.worst, "bars": BARS, "orders": orders}
        return json.dumps({"schema": "mla-cost/validate-time/1", **found, "cells": cells}, indent=2)


def alone(*, quick: bool = False) -> list[Spec]:
    """Blocks and layers on one rank."""
    lengths = (256, 640) if quick else (256, 512, 1024)
    found = made({**COMMON, "form": form, "seq_len": length} for length in lengths for form in FORMS)
    if quick:
        return found
    found += made({**COMMON, "form": form, "dims": WIDE, "seq_len": 640} for form in FORMS)
    found += made({**COMMON, **each} for each in ({"remat": "full"}, {"micro_batch": 2}, {"v_layout": "contiguous"}))
    found += made({**COMMON, "form": form, "layer": "dense", "seq_len": 640} for form in FORMS)
    return found + made({**COMMON, "layer": "dense", "ffn": ffn, "dims": WIDE} for ffn in (1536, 2560))


def together(*, quick: bool = False) -> list[Spec]:
    """Blocks over two ranks."""
    lengths = (512,) if quick else (512, 1024)
    return made({**COMMON, "form": form, "seq_len": length, "sp": 2} for length in lengths for form in FORMS)


def validate_time(
    device: str = "cpu", *, quick: bool = False, ranks: bool = True, watch: Watch = lambda _words: None
) -> TimeReport:
    """Measure this machine, predict every cell and run it. ranks: also blocks over two processes.

    Raises:
        InputError: what was measured makes no device.

    """
    one, two = alone(quick=quick), together(quick=quick) if ranks else []
    bench = device_file.start(device, "fp32", quick=quick)
    steps = [make_step(spec) for spec in one]
    measured = [float("inf")] * len(one)
    found: list[Sample] = []
    for at in range(2 if quick else 3):
        watch(f"pass {at + 1}: micro-benchmarks")
        found = list(samples(bench))
        watch(f"pass {at + 1}: blocks and layers")
        again = Clock(device, rounds=2).best_of_each(steps)
        measured = [min(pair) for pair in zip(measured, again, strict=True)]
    config = device_file.made(found, [], device, "fp32", 1).config()
    cells = [_cell(spec, seconds, config) for spec, seconds in zip(one, measured, strict=True)]
    watch("two ranks")
    cells += _over_ranks(two, device, quick=quick)
    return TimeReport(tuple(cells), *_orders(cells))


def _cell(spec: Spec, seconds: float, config: DeviceConfig) -> TimedCell:
    low, middle, high = (foretold(spec, config, end) for end in reversed(ENDS))
    group = name(replace(spec, form=FORMS[0], scheme=None)).partition(" ")[2]
    words = name(spec) if spec.layer == "attention" else f"{spec.layer} {name(spec)}"
    return TimedCell(words, f"{spec.layer} {group}", spec.form, middle, low, high, seconds)


def foretold(spec: Spec, config: DeviceConfig, end: End = "middle") -> float:
    """Seconds forward and backward of one rank of a cell, at one end of the band."""
    on = ceilings(config, end)
    lie = placement(Parallel(tp=spec.tp, sp=spec.sp, ep=spec.ep, etp=spec.etp, dp=spec.dp), DEFAULT_ORDER, on.domain)
    how = times.Pricing(on, LinkTraffic(lie), causal=False, graphs=True, hidden_axes=())
    each = times.program_times(predicted(spec), how)
    return float(sum(times.passed([each], way, how).seconds for way in ("forward", "backward")))


def _orders(cells: Iterable[TimedCell]) -> tuple[int, int, int]:
    """Pairs of forms at one setting: told rightly, told at all, and too close to call."""
    told = [_right(*pair) for pair in _pairs(cells)]
    return sum(each is True for each in told), sum(each is not None for each in told), sum(e is None for e in told)


def _pairs(cells: Iterable[TimedCell]) -> Iterator[tuple[TimedCell, TimedCell]]:
    by_group: dict[str, list[TimedCell]] = {}
    for cell in cells:
        by_group.setdefault(cell.group, []).append(cell)
    for group in by_group.values():
        yield from combinations(group, 2)


def _right(one: TimedCell, other: TimedCell) -> bool | None:
    """None where what is foretold differs by less than the bar, which is the band that this comparison has."""
    if max(one.predicted, other.predicted) / min(one.predicted, other.predicted) - 1 < BARS[0]:
        return None
    return (one.predicted < other.predicted) == (one.measured < other.measured)


def _over_ranks(specs: Sequence[Spec], device: str, *, quick: bool) -> list[TimedCell]:
    """Blocks over two processes of this machine, which share its memory: kernels are timed with both at work."""
    if not specs:
        return []
    with tempfile.TemporaryDirectory() as folder:
        start_ranks(_rank, 2, list(specs), device, quick, folder)
        # written by our own ranks a moment ago
        each = [torch.load(Path(folder) / str(rank), weights_only=False) for rank in range(2)]
    (found, sent, mine), (_, _, others) = each
    config = device_file.made(found, sent, device, "fp32", 2).config()
    return [_cell(spec, sum(pair) / 2, config) for spec, *pair in zip(specs, mine, others, strict=True)]


def _rank(rank: int, ranks: int, specs: Sequence[Spec], device: str, quick: bool, folder: str) -> None:
    joined(rank, ranks, device, folder)
    groups = make_groups(ranks, 1, 1, 1)
    bench = device_file.start(device, "fp32", quick=quick)
    steps = [make_step(spec, groups, rank) for spec in specs]
    measured = [float("inf")] * len(specs)
    found: list[Sample] = []
    for _ in range(1 if quick else 3):
        found = list(samples(bench))
        again = Clock(device, rounds=3).best_of_each(steps)
        measured = [min(pair) for pair in zip(measured, again, strict=True)]
    sent = timed_here(rank, ranks, device, quick)
    torch.save((found, sent, measured), Path(folder) / str(rank))
    dist.barrier()
    dist.destroy_process_group()
