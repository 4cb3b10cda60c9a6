"""Real devices: records of `python -m mla_cost.checks.reference` against the model.

Requested bytes are compared exactly. What a library took before the step (cuBLAS keeps a workspace) is what was held
beyond parameters, tables and input; what an allocator rounds up is the rest of `max_memory_allocated`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from mla_cost.checks.reference.spec import Dims, Spec
from mla_cost.checks.validation.cells import name
from mla_cost.checks.validation.predict import predicted_stack
from mla_cost.checks.validation.report import CheckRow, row
from mla_cost.declared.schemes import SCHEMES
from mla_cost.errors import InputError, shown
from mla_cost.language.machine import DTYPE_BYTES
from mla_cost.pricing.block import BlockFigures

SCHEMA = "mla-cost/device-record/1"
FIGURES = {"held_bytes", "requested_bytes_peak", "max_memory_allocated"}
FAMILIES = {"cuda": "cuda", "npu": "ascend", "cpu": "cpu"}
ROUNDING = 512  # bytes: caching allocators hand out multiples of it
SCALAR = 4  # bytes of the loss and of its gradient, which the runner makes before the step


def check_records(file: Path) -> Iterator[CheckRow]:
    """One row per record of the file.

    Raises:
        InputError: a line that is no record, with its number.

    """
    for number, line in enumerate(_lines(file), 1):
        if line.strip():
            yield _check(*_record(line, file, number))


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as problem:
        why = getattr(problem, "strerror", None) or "not UTF-8"
        raise InputError(f"cannot be read: {why}", file=str(file)) from None


def _record(line: str, file: Path, number: int) -> tuple[Spec, Mapping[str, Any], BlockFigures]:
    try:
        return _understood(json.loads(line))
    except (KeyError, TypeError, ValueError) as problem:
        raise InputError(f"no record of a device: {shown(str(problem))}", file=str(file), line=number) from None


def _understood(record: Any) -> tuple[Spec, Mapping[str, Any], BlockFigures]:
    """The cell of a record and what the model says of it; an error of lookup or value where it is none."""
    if record["schema"] != SCHEMA or not record["figures"].keys() >= FIGURES:
        raise ValueError(f"not schema {SCHEMA} with its figures")
    spec = Spec(**{**record["spec"], "dims": Dims(**record["spec"]["dims"])})
    return spec, record, predicted_stack(_as_run(spec, record), _family(record))


def _family(record: Mapping[str, Any]) -> str:
    """Whose kernels ran: torch for ROCm says cuda too, without a CUDA version."""
    kind = record["device"]["type"]
    return "rocm" if kind == "cuda" and record["versions"]["cuda"] is None else FAMILIES[kind]


def _as_run(spec: Spec, record: Mapping[str, Any]) -> Spec:
    """The cell as the device ran it: on CUDA torch's RMSNorm is one fused op whatever was asked for."""
    return replace(spec, norm="fused") if record["device"]["type"] == "cuda" else spec


def _check(spec: Spec, record: Mapping[str, Any], it: BlockFigures) -> CheckRow:
    figures, cell = record["figures"], f"{record['device']['name']}: {name(spec)}"
    requested, held = figures["requested_bytes_peak"], figures["held_bytes"]
    if requested is None or held is None:
        return row("requested bytes", cell, "", "the device reports no peak", by_construction=True)
    before = _held(spec, it)
    library = held - sum(-(-size // ROUNDING) * ROUNDING for size in before)
    predicted = it.allocated_peak_bytes + sum(_beside(spec))
    detail = (
        f"{predicted:,} B; library workspace {library:,} B, allocator rounding "
        f"{figures['max_memory_allocated'] - requested:,} B"
    )
    off = requested - library - predicted
    fault = f"model {predicted:,} B, device {predicted + off:,} B ({off:+,} B); {detail}" if off else ""
    return row("requested bytes", cell, fault, detail)


def _held(spec: Spec, it: BlockFigures) -> list[int]:
    """Bytes of each tensor that lives before the step: parameters, tables, the input and two numbers."""
    account = it.at.account
    parameters = [parameter.size.at(it.at.values) for parameter in account.timeline.parameters]
    return [*parameters * spec.layers, it.at.bytes_of(0), *_beside(spec)]


def _beside(spec: Spec) -> list[int]:
    """What a step has beside what the model counts: RoPE tables, masks and two numbers."""
    local = spec.seq_len // spec.sp
    table = local * spec.dims.rope * DTYPE_BYTES[spec.dtype]
    return [*[table, table, *_mask(spec, local)] * spec.layers, SCALAR, SCALAR]


def _mask(spec: Spec, local: int) -> list[int]:
    """The mask that an eager kernel holds, one byte an element; it has a row for each query of this rank."""
    if spec.mask != "tensor" or spec.by_construction or spec.fused_attention != "stand-in":
        return []
    queries = spec.seq_len if SCHEMES[spec.pair[1]].divides_heads else local
    return [queries * spec.seq_len]
