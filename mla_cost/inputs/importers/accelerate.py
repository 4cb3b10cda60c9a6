"""Accelerate's YAML and HF Trainer's `fsdp_config` (huggingface/accelerate@16cb6eb8): ranks, precision, sharding."""

from __future__ import annotations

from typing import Final

from mla_cost.declared.foreign import NEXT_TO_FULLY_SHARDED, PLAIN
from mla_cost.inputs.importers.imported import FileReading, Foreign, Format
from mla_cost.inputs.importers.keys import Keys, fully_sharded, take_number, tell_rest

_STRATEGIES: Final = ("FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD", "HYBRID_SHARD_ZERO2")
_SOURCE: Final = "huggingface/accelerate@16cb6eb8 src/accelerate/utils/dataclasses.py:1666-1680"


def _recognises(foreign: Foreign) -> bool:
    data = foreign.data or {}
    return "distributed_type" in data or "fsdp_config" in data or any(str(key).startswith("fsdp_") for key in data)


def _read(foreign: Foreign, reading: FileReading) -> None:
    data = dict(foreign.data or {})
    if "fsdp_config" not in data and "distributed_type" not in data:
        data = {"fsdp_config": data}
    keys = Keys(data, foreign.file)
    keys.get("distributed_type")
    if foreign.dp is not None:
        reading.put("dp", foreign.dp)
    else:
        take_number(keys, reading, "dp", "num_processes")
    take_number(keys, reading, "micro_batch", "per_device_train_batch_size")
    take_number(keys, reading, "micro_batches", "gradient_accumulation_steps")
    _precision(keys, reading)
    _sharding(keys, reading)
    again = keys.on("fsdp_config.fsdp_activation_checkpointing") or keys.on("fsdp_config.activation_checkpointing")
    if again or keys.on("gradient_checkpointing"):
        reading.take("remat", "full", "activation checkpointing")
    tell_rest(keys, reading, ("fsdp_config.fsdp_offload_params", "deepspeed_config.offload"))


def _precision(keys: Keys, reading: FileReading) -> None:
    word = keys.get("mixed_precision")
    if word in {"bf16", "fp16"} or keys.on("bf16") or keys.on("fp16"):
        half = word if word in {"bf16", "fp16"} else "bf16" if keys.on("bf16") else "fp16"
        reading.take("dtype", half, "mixed_precision")
    elif word in {"no", False}:
        reading.take("dtype", "fp32", "mixed_precision no")
    elif word is not None:
        reading.ignore(f"mixed_precision {word}", "bf16 is priced", priced=True)


def _sharding(keys: Keys, reading: FileReading) -> None:
    word = keys.get("fsdp_config.fsdp_sharding_strategy") or keys.get("fsdp_config.sharding_strategy")
    again = keys.get("fsdp_config.fsdp_reshard_after_forward")
    name = str(word or again or "FULL_SHARD").upper()
    name = _STRATEGIES[int(name) - 1] if name in {"1", "2", "3", "4", "5"} else name
    if name == "NO_SHARD":
        reading.take("sharding", PLAIN, f"fsdp_sharding_strategy {name}")
    elif name in {"SHARD_GRAD_OP", "FALSE"}:
        reading.take("sharding", NEXT_TO_FULLY_SHARDED, f"fsdp_sharding_strategy {name}")
    elif name in {"HYBRID_SHARD", "HYBRID_SHARD_ZERO2"}:
        fully_sharded(reading, f"fsdp_sharding_strategy {name}, which shares within a node alone")
    else:
        fully_sharded(reading, f"fsdp_sharding_strategy FULL_SHARD ({_SOURCE} where absent)" if word is None else name)


FORMAT: Final = Format("accelerate", "an Accelerate or HF Trainer FSDP YAML", _recognises, _read)
