"""DeepSpeed's JSON of a plan (microsoft/DeepSpeed@38327e07 deepspeed/runtime/constants.py, zero/config.py)."""

from __future__ import annotations

import json
from typing import Any, Final

from mla_cost.declared.foreign import FULLY_SHARDED, ZERO_STAGES
from mla_cost.inputs.exporters.exported import ExportedLaunch, Exporter

_SAID: Final = frozenset({"micro_batch", "micro_batches", "dp", "dtype", "gradient_dtype"})


def _write(launch: ExportedLaunch) -> tuple[str, frozenset[str]]:
    told = launch.settings
    stage = next((stage for stage, name in _stages().items() if name == told.sharding), None)
    found: dict[str, Any] = {
        "train_batch_size": told.micro_batch * told.micro_batches * told.dp,
        "train_micro_batch_size_per_gpu": told.micro_batch,
        "gradient_accumulation_steps": told.micro_batches,
    }
    if told.sp > 1:
        found["sequence_parallel_size"] = told.sp
    if told.dtype != "fp32":
        found[told.dtype] = {"enabled": True}
    found["data_types"] = {"grad_accum_dtype": told.gradient_dtype}
    if stage is not None:
        found["zero_optimization"] = {"stage": stage}
    said = {*_SAID, "sp"} | ({"sharding"} if stage is not None else set())
    return json.dumps(found, indent=2) + "\n", frozenset(said)


def _stages() -> dict[int, str]:
    return {**ZERO_STAGES, **({3: FULLY_SHARDED} if FULLY_SHARDED else {})}


EXPORTER: Final[Any] = Exporter("deepspeed-json", "DeepSpeed", trains=False, write=_write)
