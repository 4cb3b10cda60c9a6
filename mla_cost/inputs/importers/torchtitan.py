"""torchtitan's TOML (pytorch/torchtitan@e347b1e5, the last that reads TOML; torchtitan/config/job_config.py)."""

from __future__ import annotations

from typing import Final

from mla_cost.declared.foreign import FLAVORS, PLAIN, SCHEDULES, TRAINED
from mla_cost.errors import InputError
from mla_cost.inputs import catalog
from mla_cost.inputs.importers.imported import FileReading, Foreign, Format
from mla_cost.inputs.importers.keys import Keys, fully_sharded, take_number, tell_rest

_SOURCE: Final = "pytorch/torchtitan@e347b1e5 torchtitan/config/job_config.py:"
_DEGREES: Final = (
    ("tp", "tensor_parallel_degree", 351),
    ("pp", "pipeline_parallel_degree", 360),
    ("sp", "context_parallel_degree", 428),
    ("ep", "expert_parallel_degree", 454),
    ("etp", "expert_tensor_parallel_degree", 464),
)
_PRICED: Final = ("quantize.", "float8", "mx.", "compile.", "parallelism.enable_async", "training.enable_cpu_offload")


def _recognises(foreign: Foreign) -> bool:
    data = foreign.data or {}
    return foreign.file.lower().endswith(".toml") and "parallelism" in data and "training" in data


def _read(foreign: Foreign, reading: FileReading) -> None:
    keys = Keys(foreign.data or {}, foreign.file)
    _model(keys, reading)
    reading.put("form", [TRAINED])
    take_number(keys, reading, "seq_len", "training.seq_len", 2048, f"{_SOURCE}261")
    take_number(keys, reading, "micro_batch", "training.local_batch_size", 8, f"{_SOURCE}253")
    for setting, name, line in _DEGREES:
        take_number(keys, reading, setting, f"parallelism.{name}", 1, f"{_SOURCE}{line}")
    _data_ranks(keys, reading, foreign.dp)
    _batch(keys, reading)
    _recompute(keys, reading)
    reading.put("dtype", "bf16")
    reading.assume("dtype", "bf16", "training.mixed_precision_param is bfloat16 where absent", f"{_SOURCE}282")
    _schedule(keys, reading)
    reading.take("moe_style", "torchtitan", "a torchtitan run")
    tell_rest(keys, reading, _PRICED)


def _model(keys: Keys, reading: FileReading) -> None:
    name, flavor = (str(keys.get(f"model.{key}")) for key in ("name", "flavor"))
    if name != "deepseek_v3" or flavor not in FLAVORS:
        raise InputError(
            f"{name} {flavor} is no MLA model of torchtitan that is known here", file=keys.file, field="model.flavor",
            allowed=f"deepseek_v3 with {', '.join(FLAVORS)}",
        )  # fmt: skip
    reading.take("model", FLAVORS[flavor], f"model.flavor {flavor}")
    if catalog.model(FLAVORS[flavor]).num_mtp_layers:
        reading.assume("mtp", 0, "torchtitan's model has no multi-token-prediction module", "models/deepseek_v3")


def _data_ranks(keys: Keys, reading: FileReading, dp: int | None) -> None:
    """Replicas times shards; -1 shards take what is left of the world, which the file does not state."""
    shards = keys.get("parallelism.data_parallel_shard_degree")
    replicas = keys.number("parallelism.data_parallel_replicate_degree") or 1
    told = reading.settings
    if dp is not None:
        reading.put("dp", dp)
    elif isinstance(shards, int) and shards > 0:
        reading.take("dp", shards * replicas, "data_parallel_shard_degree x data_parallel_replicate_degree")
    else:
        experts, others = told["ep"] * told["etp"], told["tp"] * told["sp"]
        least = next(ranks for ranks in range(1, experts + 1) if not others * ranks % experts)
        why = "data_parallel_shard_degree -1 takes all ranks; how many there are is not in the file (--dp states it)"
        reading.assume("dp", least, why)
    if shards == 1 and replicas > 1:
        reading.take("sharding", PLAIN, "data_parallel_shard_degree 1")
    else:
        fully_sharded(reading, "FSDP2 (data_parallel_shard_degree)")
        if replicas > 1:
            reading.take("replicas", replicas, "parallelism.data_parallel_replicate_degree")
        if keys.get("parallelism.fsdp_reshard_after_forward") == "never":
            reading.take("reshard", "off", "parallelism.fsdp_reshard_after_forward never")


def _batch(keys: Keys, reading: FileReading) -> None:
    """Gradients are added up over global_batch_size / (local_batch_size x data ranks) micro-batches."""
    total = keys.get("training.global_batch_size")
    each = reading.settings["micro_batch"] * reading.settings["dp"]
    if not isinstance(total, int) or total < 1:
        why = "training.global_batch_size is local_batch_size x data ranks where absent"
        return reading.assume("micro_batches", 1, why, f"{_SOURCE}256")
    if total % each:
        raise InputError(
            "does not split over data ranks", file=keys.file, field="training.global_batch_size", value=total
        )
    return reading.take("micro_batches", total // each, "training.global_batch_size")


def _recompute(keys: Keys, reading: FileReading) -> None:
    mode = keys.get("activation_checkpoint.mode")
    if mode in {"full", "none"}:
        return reading.take("remat", mode, "activation_checkpoint.mode")
    reading.put("remat", "none")
    said = f"activation_checkpoint.mode {mode or 'selective (where absent)'}"
    return reading.ignore(said, "which ops it keeps is not priced; nothing recomputed is", priced=True)


def _schedule(keys: Keys, reading: FileReading) -> None:
    given = keys.get("parallelism.pipeline_parallel_schedule")
    word = given if isinstance(given, str) else None
    if reading.settings["pp"] == 1:
        return
    if word in SCHEDULES and word != "Interleaved1F1B":
        reading.take("schedule", SCHEDULES[word], "parallelism.pipeline_parallel_schedule")
    elif word == "Interleaved1F1B":
        reading.assume("virtual_stages", 2, "an interleaved schedule has two stages a rank unless more are stated")
    elif word is not None:
        reading.ignore(f"pipeline_parallel_schedule {word}", "1F1B is priced", priced=True)


FORMAT: Final = Format("torchtitan", "a torchtitan TOML", _recognises, _read)
