"""A device file made of what was measured: every ceiling, its spread, and how it was taken."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import torch
import yaml

from mla_cost.checks.measuring import fitting
from mla_cost.checks.measuring.clock import Clock, keep_freed_memory
from mla_cost.checks.measuring.fitting import FittedFigure
from mla_cost.checks.measuring.kernels import Bench, Sample, samples
from mla_cost.checks.measuring.links import KINDS, TimedExchange, exchanges
from mla_cost.inputs.config import DeviceConfig, validated
from mla_cost.timing.ceilings import MICRO, RATES

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
FAMILIES = {"cpu": "cpu", "cuda": "rocm" if torch.version.hip else "cuda", "npu": "ascend"}
ASSUMED = "assumed: not measured"
Watch = Callable[[str], None]


class Measured(NamedTuple):
    """Every timing of a machine, and the file made of them."""

    samples: Sequence[Sample]
    exchanges: Sequence[TimedExchange]
    device: Mapping[str, Any]

    def config(self) -> DeviceConfig:
        """The device, as any file of one is read."""
        return validated(DeviceConfig, self.device)

    def text(self) -> str:
        """The file."""
        head = "# Written by `mla-cost measure`: what this machine reached, shortest of several timings each.\n"
        return head + yaml.safe_dump(dict(self.device), sort_keys=False, width=10_000, default_flow_style=None)


def here() -> Literal["cpu", "cuda", "npu"]:
    """What torch computes on here."""
    if torch.cuda.is_available():
        return "cuda"
    npu = getattr(torch, "npu", None)
    return "npu" if npu is not None and npu.is_available() else "cpu"


def measure(
    device: str = "cpu", dtype: str = "fp32", ranks: int = 2, *, quick: bool = False,
    watch: Watch = lambda _words: None,
) -> Measured:  # fmt: skip
    """Time every class of work, and collectives where there are at least two ranks, and make a device file of it.

    quick: fewer shapes and one pass, some seconds. Runs on one thread of a CPU, whose time is that of its cores.
    """
    bench = start(device, dtype, quick=quick)
    found: list[Sample] = []
    for at in range(1 if quick else 3):
        watch(f"kernels, pass {at + 1}")
        found = list(samples(bench))
    watch("collectives")
    sent = exchanges(device, ranks, quick) if ranks > 1 else []
    return made(found, sent, device, dtype, ranks)


def start(device: str, dtype: str, *, quick: bool) -> Bench:
    """A bench on this machine."""
    torch.set_num_threads(1)
    keep_freed_memory()
    torch.manual_seed(0)
    return Bench(Clock(device, rounds=3 if quick else 5), DTYPES[dtype], quick, {})


def made(found: Sequence[Sample], sent: Sequence[TimedExchange], device: str, dtype: str, ranks: int) -> Measured:
    """The file of what was found."""
    floor = fitting.launch(found)
    rates = {work: fitting.rates(found, work, floor.value) for work in fitting.MEMORY}
    bandwidth = max(rate.high for rate in rates.values())
    peak = max(it.flops / it.seconds for it in found if it.flops)
    on = fitting.bare()._replace(
        launch=floor.value * MICRO, peak_bf16=peak, peak_fp32=peak, bandwidth=bandwidth, tile=16.0, small_tile=0.5
    )
    on = on._replace(memory=rates["elementwise"].value / bandwidth, in_turn=device == "cpu")
    gemm, depth, operands = fitting.products(found, on)
    peak *= max(1.0, gemm.high)  # what the fastest would reach if its operands cost nothing
    scale = max(1.0, gemm.high)
    gemm = gemm.times(1 / scale)
    on = on._replace(peak_bf16=peak, peak_fp32=peak, operands=operands.value)
    of_products = {"gemm_share": gemm, "gemm_depth_half": depth, "gemm_memory_share": operands}
    time = {**_kernels(found, on, floor, of_products), **_memory(rates, bandwidth), **_links(sent, ranks)}
    told = _about(device, dtype, ranks, peak, bandwidth, _inside(sent))
    return Measured(found, sent, {**told, "time": time, "sources": _sources(dtype)})


def _fact(found: FittedFigure, digits: int = 4) -> dict[str, Any]:
    low, value, high = (float(f"{each:.{digits}g}") for each in (found.low, found.value, found.high))
    return {
        "value": value, "low": min(low, value), "high": max(high, value), "verified": True, "source": "measured",
        "note": found.note,
    }  # fmt: skip


def _given(value: float, note: str = ASSUMED) -> dict[str, Any]:
    return {"value": float(f"{value:.4g}"), "verified": False, "source": "assumed", "note": note}


def _kernels(
    found: Sequence[Sample], on: Any, floor: FittedFigure, of_products: Mapping[str, FittedFigure]
) -> dict[str, Any]:
    grouped, rows, of_input, of_weight = fitting.grouped(found, on)
    attention, length, backward = fitting.attention(found, on)
    figures = {
        "launch_floor_us": floor, **of_products, "grouped_gemm_share": grouped, "grouped_gemm_rows_half": rows,
        "grouped_gemm_input_ratio": of_input, "grouped_gemm_weight_ratio": of_weight, "attention_share": attention,
        "attention_length_half": length, "attention_backward_ratio": backward,
    }  # fmt: skip
    given = {
        "host_launch_us": _given(floor.value, "the launch floor: the two were not told apart"),
        "compute_units": _given(on.units, "one thread"),
        "tile": _given(on.tile),
        "small_tile_rate": _given(on.small_tile),
        "peak_fp32_tflops": _given(on.peak_fp32 / 1e12, "as peak_bf16_dense_tflops"),
    }  # fmt: skip
    return {**{name: _fact(each) for name, each in figures.items()}, **given}


def _memory(rates: Mapping[str, FittedFigure], bandwidth: float) -> dict[str, Any]:
    names = {work: f"{'memory' if work == 'elementwise' else work}_share" for work in rates}
    return {names[work]: _fact(rate.times(1 / bandwidth)) for work, rate in rates.items()}


def _inside(sent: Sequence[TimedExchange]) -> float:
    return max(fitting.exchange(sent, kind)[1] for kind in KINDS) if sent else 1e9


def _links(sent: Sequence[TimedExchange], ranks: int) -> dict[str, Any]:
    """Rates of collectives by the fastest of them, and what one takes that sends next to nothing."""
    if not sent:
        alone: dict[str, Any] = {str(fact): _given(1.0) for fact in RATES.values()}
        return {**alone, **{name: _given(10.0) for name in _LATENCIES}, "network_share": _given(1.0)}
    fits = {kind: fitting.exchange(sent, kind) for kind in KINDS}
    best, note = _inside(sent), f"{ranks} ranks, the largest and the smallest that were timed"
    shares: dict[str, Any] = {
        str(fact): _fact(FittedFigure(*(_fit_of(kind, fits)[1] / best,) * 3, note)) for kind, fact in RATES.items()
    }
    latency = [fit[0] / MICRO for fit in fits.values()]
    middle = sorted(latency)[len(latency) // 2]
    return {
        **shares, "collective_latency_us": _fact(FittedFigure(middle, min(latency), max(latency), note)),
        "step_latency_us": _given(1e-3, "in the latency"), "network_share": _given(1.0),
        "network_latency_us": _given(middle, "as inside the machine: no other was measured"),
    }  # fmt: skip


_LIKE = {"reduce": "reduce_scatter"}  # kinds that no call of their own was timed for; others go as an all-to-all
_LATENCIES = ("collective_latency_us", "step_latency_us", "network_latency_us")


def _about(device: str, dtype: str, ranks: int, peak: float, bandwidth: float, inside: float) -> dict[str, Any]:
    """What every device file says beside its times."""
    total = _memory_bytes(device)
    words = f"the fastest product that was timed in {dtype}, without its operands as far as the fit tells"
    return {
        "name": f"this-{device}", "title": f"{_processor(device)}, measured", "vendor": platform.system().lower(),
        "family": FAMILIES[device], "arch": platform.machine() if device == "cpu" else _architecture(device),
        "marketing_gb": {**_given(total / 1e9, "what the system says"), "value": max(1, round(total / 1e9))},
        "runtime_total_bytes": {"value": total, "verified": True, "source": "measured"},
        "memory_bandwidth_gb_s": _given(bandwidth / 1e9, "the fastest class that moves memory, caches and all"),
        "peak_bf16_dense_tflops": _given(peak / 1e12, words),
        "intra_node_gb_s": _given(inside / 1e9, "the fastest kind of collective"),
        "intra_node_topology": f"{ranks} processes on one machine",
        "inter_node_gb_s": _given(inside / 1e9, "as inside the machine: no other was measured"),
        "devices_per_node": {"value": max(ranks, 1), "verified": True, "source": "measured"},
    }  # fmt: skip


def _fit_of(kind: str, fits: Mapping[str, tuple[float, float]]) -> tuple[float, float]:
    return fits.get(_LIKE.get(kind, kind), fits["all_to_all"])


def _memory_bytes(device: str) -> int:
    if device == "cpu":
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return int(getattr(torch, device).get_device_properties(0).total_memory)


def _processor(device: str) -> str:
    return platform.processor() or platform.machine() if device == "cpu" else getattr(torch, device).get_device_name(0)


def _architecture(device: str) -> str:
    if device == "npu" or torch.version.hip:
        return str(getattr(torch, device).get_device_name(0)).lower()
    major, minor = torch.cuda.get_device_capability(0)
    return f"sm{major}{minor}"


def _sources(dtype: str) -> dict[str, str]:
    how = "the shortest of several timings each, one thread; on a CPU the time of its cores for this process"
    return {
        "measured": f"timed on this machine with torch {torch.__version__} in {dtype}, {how}",
        "assumed": "not measured, as the note says",
    }
