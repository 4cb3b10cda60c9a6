"""torchtitan's TOML of a plan (pytorch/torchtitan@e347b1e5 torchtitan/config/job_config.py)."""

from __future__ import annotations

from typing import Any, Final

from mla_cost.declared.foreign import FLAVORS, FULLY_SHARDED, PLAIN, SCHEDULES
from mla_cost.errors import InputError
from mla_cost.inputs.exporters.exported import ExportedLaunch, Exporter

_SAID: Final = frozenset(("seq_len", "micro_batch", "micro_batches", "tp", "pp", "sp", "ep", "etp", "dp", "dtype"))


def _write(launch: ExportedLaunch) -> tuple[str, frozenset[str]]:
    told, model = launch.settings, launch.model
    flavor = next((flavor for flavor, name in FLAVORS.items() if name == model.name), None)
    if flavor is None:
        allowed = ", ".join(FLAVORS.values())
        raise InputError("torchtitan's deepseek_v3 has no such model", field="model", value=model.name, allowed=allowed)
    shards = 1 if told.sharding == PLAIN else told.dp // told.replicas
    lines = [
        "[model]", 'name = "deepseek_v3"', f'flavor = "{flavor}"', "",
        "[training]", f"local_batch_size = {told.micro_batch}",
        f"global_batch_size = {told.micro_batch * told.micro_batches * told.dp}", f"seq_len = {told.seq_len}", "",
        "[parallelism]", f"data_parallel_replicate_degree = {told.dp // shards}",
        f"data_parallel_shard_degree = {shards}", f"tensor_parallel_degree = {told.tp}",
        f"pipeline_parallel_degree = {told.pp}", f"context_parallel_degree = {told.sp}",
        f"expert_parallel_degree = {told.ep}", f"expert_tensor_parallel_degree = {told.etp}",
    ]  # fmt: skip
    if model.num_mtp_layers:
        lines.insert(0, "# torchtitan's model has no multi-token-prediction module: price it with --mtp 0")
    said = set(_SAID)
    schedule = next((word for word, name in SCHEDULES.items() if name == told.schedule), None)
    if schedule is not None:
        lines.append(f'pipeline_parallel_schedule = "{schedule}"')
        said.add("schedule")
    if told.remat in {"none", "full"}:
        lines += ["", "[activation_checkpoint]", f'mode = "{told.remat}"']
        said.add("remat")
    if told.sharding in {PLAIN, FULLY_SHARDED}:
        said |= {"sharding", "replicas"}
    return "\n".join(lines) + "\n", frozenset(said)


EXPORTER: Final[Any] = Exporter("torchtitan", "torchtitan", trains=True, write=_write)
