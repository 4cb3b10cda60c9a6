"""Measure one layer on the device at hand: peak memory as the runtime reports it, and the time of a step.

    torchrun --nproc-per-node 8 -m mla_cost.checks.reference --form laga --output runs.jsonl
    python -m mla_cost.checks.reference --form laga --sp 8 --fake-group        one device, the memory of one rank of 8

It runs with nccl on CUDA, hccl on Ascend (torch_npu) and gloo on the CPU, which has no peak to report. Each call
appends one JSON object, a line, to the output file (or prints it): device, versions, the spec and the figures.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from statistics import median
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import nn

from mla_cost.checks.reference.fake import fake_groups
from mla_cost.checks.reference.forms import initialise
from mla_cost.checks.reference.layer import make_inputs, make_layer
from mla_cost.checks.reference.measure import holding, loss_of
from mla_cost.checks.reference.spec import DIMS, FORMS, LAYERS, SETTINGS, Dims, Spec
from mla_cost.checks.reference.tp import ProcessGroups, make_groups

SCHEMA = "mla-cost/device-record/1"
BACKENDS = {"cuda": "nccl", "npu": "hccl", "cpu": "gloo"}


@dataclass(frozen=True)
class DeviceStep:
    """Figures of one forward and backward. None where the device does not report it.

    held_bytes is what was allocated before the step: parameters, tables and the input.
    """

    seconds: float
    held_bytes: int | None
    max_memory_allocated: int | None
    requested_bytes_peak: int | None


def _device() -> torch.device:
    """This process's cuda or npu device, or the CPU where there is neither."""
    if importlib.util.find_spec("torch_npu"):
        importlib.import_module("torch_npu")  # registers torch.npu
    for kind in ("cuda", "npu"):
        runtime = getattr(torch, kind, None)
        if runtime is not None and runtime.is_available():
            device = torch.device(kind, int(os.environ.get("LOCAL_RANK", "0")))
            runtime.set_device(device)
            return device
    return torch.device("cpu")


def measure(spec: Spec, groups: ProcessGroups, device: torch.device, steps: int) -> list[DeviceStep]:
    """Run `steps` forwards and backwards of the layer in the surround of `measure.record`, after one to warm up."""
    with device:
        layer, inputs = make_layer(spec, groups), make_inputs(spec)
    initialise(layer)
    for x in inputs:
        x.data.normal_()
    return [_step(layer, inputs, device, spec.caller_holds) for _ in range(steps + 1)][1:]


def _step(layer: nn.Module, inputs: Sequence[torch.Tensor], device: torch.device, holds: bool) -> DeviceStep:
    layer.zero_grad()
    for x in inputs:
        x.grad = None
    scalar, seed = (torch.zeros((), device=device) for _ in range(2))
    runtime = getattr(torch, device.type)
    held = _restart(runtime)
    start = time.perf_counter()
    if holds:
        outputs: list[Any] = []
        loss_of(holding(layer(*inputs), outputs), scalar).backward(seed)
    else:
        loss_of(layer(*inputs), scalar).backward(seed)
    runtime.synchronize()
    seconds = time.perf_counter() - start
    if held is None:
        return DeviceStep(seconds, None, None, None)
    requested = runtime.memory_stats().get("requested_bytes.all.peak")
    return DeviceStep(seconds, held, runtime.max_memory_allocated(), requested)


def _restart(runtime: Any) -> int | None:
    """Wait for the device and forget its peak; returns the bytes allocated now."""
    runtime.synchronize()
    if not hasattr(runtime, "reset_peak_memory_stats"):  # torch.cpu
        return None
    runtime.reset_peak_memory_stats()
    return int(runtime.memory_allocated())


def describe(spec: Spec, steps: Sequence[DeviceStep], device: torch.device, *, fake: bool) -> dict[str, Any]:
    """Return the record of one measurement, as it is written."""
    name = platform.processor() or platform.machine()
    if device.type != "cpu":
        name = getattr(torch, device.type).get_device_name(device)
    versions = {"python": platform.python_version(), "torch": torch.__version__, "cuda": torch.version.cuda}
    figures = asdict(steps[-1]) | {"seconds": median(step.seconds for step in steps)}
    return {
        "schema": SCHEMA,
        "device": {"type": device.type, "name": name},
        "versions": versions,
        "group": "fake" if fake else BACKENDS[device.type],
        "by_construction": spec.by_construction,
        "spec": asdict(spec),
        "steps": len(steps),
        "figures": figures,
    }


@contextmanager
def _real_groups(spec: Spec, device: torch.device) -> Iterator[ProcessGroups]:
    if spec.ranks == 1:
        yield ProcessGroups()
        return
    dist.init_process_group(BACKENDS[device.type])
    try:
        yield make_groups(spec.sp, spec.tp, spec.ep, spec.etp)
    finally:
        dist.destroy_process_group()


# sizes and degrees of a spec, with what they are where nothing is said
_SIZES: Final = (
    ("seq_len", 4096),
    ("micro_batch", 1),
    ("layers", 1),
    ("sp", None),
    ("tp", 1),
    ("idle_mlp", Spec.idle_mlp),
    ("ffn", Spec.ffn),
    ("vocab", Spec.vocab),
    ("loss_chunks", Spec.loss_chunks),
    ("ep", 1),
    ("etp", 1),
    ("experts", Spec.experts),
    ("experts_per_token", Spec.experts_per_token),
    ("expert_ffn", Spec.expert_ffn),
    ("shared_ffn", Spec.shared_ffn),
)


def _parser() -> argparse.ArgumentParser:
    """Return the command line: the fields of `Spec` as flags, dims by model name and one flag for each that differs."""
    parser = argparse.ArgumentParser(
        prog="python -m mla_cost.checks.reference", description=(__doc__ or "").split("\n\n")[0]
    )
    parser.add_argument("--model", choices=DIMS, default="deepseek-v3")
    for field in fields(Dims):
        parser.add_argument(f"--{field.name.replace('_', '-')}", type=int, metavar="N", help="in place of the model's")
    parser.add_argument("--no-q-lora", action="store_true", help="the query comes straight from hidden")
    parser.add_argument("--layer", choices=LAYERS, default="attention")
    parser.add_argument("--remat", default="none", help="parts that run again in backward, joined by +")
    parser.add_argument("--form", choices=FORMS, default="explicit")
    parser.add_argument("--scheme")
    for name, allowed in SETTINGS.items():
        default = next(field.default for field in fields(Spec) if field.name == name)
        choices = [choice for choice in allowed if choice is not None]
        parser.add_argument(f"--{name.replace('_', '-')}", choices=choices, default=default)
    parser.add_argument("--sharded-down", action="store_true", help="down-projections are divided over tp")
    for name, default in _SIZES:
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, metavar="N", default=default)
    parser.add_argument(
        "--fake-group", action="store_true", help="one process plays rank 0 of all; nothing is exchanged"
    )
    parser.add_argument("--steps", type=int, default=3, metavar="N")
    parser.add_argument("--output", type=Path, metavar="FILE", help="append the record here instead of printing it")
    return parser


def _spec(options: argparse.Namespace) -> Spec:
    """Return the spec that the command line asks for."""
    given = vars(options)
    dims = asdict(DIMS[options.model])
    dims |= {name: given[name] for name in dims if given[name] is not None}
    if options.no_q_lora:
        dims["q_lora_rank"] = None
    if options.sp is None:  # all the ranks that tp leaves
        given["sp"] = max(1, int(os.environ.get("WORLD_SIZE", "1")) // max(1, options.tp))
    names = [field.name for field in fields(Spec) if field.name != "dims"]
    return Spec(dims=Dims(**dims), **{name: given[name] for name in names})


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure what the command line asks for and write the record, on rank 0."""
    parser, device = _parser(), _device()
    options = parser.parse_args(arguments)
    try:
        spec = _spec(options)
    except ValueError as problem:
        parser.error(str(problem))
    if spec.by_construction and device.type != "cpu":
        instead = "there is none for layer moe" if spec.layer == "moe" else "ask for --fused-attention sdpa"
        parser.error(f"a stand-in's memory is not a fused kernel's: {instead}")
    fake, degrees = options.fake_group, (spec.sp, spec.tp, spec.ep, spec.etp)
    with fake_groups(*degrees) if fake else _real_groups(spec, device) as groups:
        steps = measure(spec, groups, device, options.steps)
    if int(os.environ.get("RANK", "0")) == 0:
        _write(json.dumps(describe(spec, steps, device, fake=options.fake_group)), options.output)


def _write(line: str, output: Path | None) -> None:
    if output is None:
        print(line)
        return
    with output.open("a", encoding="utf-8") as file:
        file.write(line + "\n")
