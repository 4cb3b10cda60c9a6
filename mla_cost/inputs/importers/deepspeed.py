"""DeepSpeed's JSON (microsoft/DeepSpeed@38327e07 deepspeed/runtime): batch, precision, ZeRO; no model, no length."""

from __future__ import annotations

from typing import Final

from mla_cost.declared.foreign import ADAM, ZERO_STAGES
from mla_cost.errors import InputError
from mla_cost.inputs.importers.imported import FileReading, Foreign, Format
from mla_cost.inputs.importers.keys import Keys, fully_sharded, take_number, tell_rest

_SOURCE: Final = "microsoft/DeepSpeed@38327e07 deepspeed/runtime/"
_MARKS: Final = ("zero_optimization", "train_micro_batch_size_per_gpu", "train_batch_size")
_DTYPES: Final = {"fp32": "fp32", "bf16": "bf16", "float32": "fp32", "bfloat16": "bf16"}


def _recognises(foreign: Foreign) -> bool:
    return foreign.data is not None and any(mark in foreign.data for mark in _MARKS)


def _read(foreign: Foreign, reading: FileReading) -> None:
    keys = Keys(foreign.data or {}, foreign.file)
    take_number(keys, reading, "micro_batch", "train_micro_batch_size_per_gpu")
    take_number(keys, reading, "micro_batches", "gradient_accumulation_steps")
    take_number(keys, reading, "sp", "sequence_parallel_size")
    _ranks(keys, reading, foreign.dp)
    _precision(keys, reading)
    _stage(keys, reading)
    kind = keys.get("optimizer.type")
    if kind is not None and str(kind).lower() not in ADAM:
        reading.ignore(f"optimizer.type {kind}", "two moments of Adam are priced", priced=True)
    tell_rest(keys, reading, ("zero_optimization.offload", "activation_checkpointing.", "compression"))


def _ranks(keys: Keys, reading: FileReading, dp: int | None) -> None:
    """train_batch_size is micro-batch x accumulation x data ranks (config.py:931-934)."""
    told, total = reading.settings, keys.number("train_batch_size")
    each = told.get("micro_batch", 0) * told.get("micro_batches", 0)
    if dp is not None:
        reading.put("dp", dp)
    elif total is not None and each and total % each == 0:
        reading.take("dp", total // each, "train_batch_size")
    elif total is not None and each:
        raise InputError(
            "is no multiple of micro-batch x accumulation", file=keys.file, field="train_batch_size", value=total
        )
    micro, ranks = told.get("micro_batch"), told.get("dp")
    if total is not None and micro and ranks and "micro_batches" not in told and total % (micro * ranks) == 0:
        reading.take("micro_batches", total // (micro * ranks), "train_batch_size")


def _precision(keys: Keys, reading: FileReading) -> None:
    half = next((name for name in ("bf16", "fp16") if keys.on(f"{name}.enabled")), None)
    if half is None:
        reading.assume("dtype", "fp32", "bf16.enabled and fp16.enabled are off where absent", f"{_SOURCE}config.py")
    else:
        reading.take("dtype", half, f"{half}.enabled")
    grads = keys.get("data_types.grad_accum_dtype")
    if grads is not None:
        reading.take("gradient_dtype", _DTYPES.get(str(grads), "fp32"), "data_types.grad_accum_dtype")
    elif half == "bf16":
        sharded = keys.given.get("zero_optimization.stage", 0) not in (0, None, "auto")
        found, who = ("bf16", "ZeRO") if sharded else ("fp32", "no ZeRO")
        why = f"data_types.grad_accum_dtype is none where absent: bf16 weights with {who} take {found}"
        reading.assume("gradient_dtype", found, why, f"{_SOURCE}engine.py:1017-1021")


def _stage(keys: Keys, reading: FileReading) -> None:
    stage = keys.number("zero_optimization.stage")
    if stage is None:
        why = "zero_optimization.stage is 0 where absent"
        reading.assume("sharding", ZERO_STAGES[0], why, f"{_SOURCE}zero/config.py:91")
    elif stage in ZERO_STAGES:
        reading.take("sharding", ZERO_STAGES[stage], f"zero_optimization.stage {stage}")
    elif stage == 3:
        fully_sharded(reading, "zero_optimization.stage 3")
    else:
        raise InputError(
            "unknown stage", file=keys.file, field="zero_optimization.stage", value=stage, allowed="0 to 3"
        )


FORMAT: Final = Format("deepspeed-json", "a DeepSpeed JSON", _recognises, _read)
