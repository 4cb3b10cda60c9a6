"""verl launch scripts (volcengine/verl@b178a3cd): overrides as `actor_rollout_ref.actor.megatron.KEY=VALUE`."""

from __future__ import annotations

from typing import Any, Final

from mla_cost.declared.foreign import TRAINED
from mla_cost.errors import InputError
from mla_cost.inputs.importers.imported import FileReading, Foreign, Format
from mla_cost.inputs.importers.keys import Keys, fully_sharded, name_model
from mla_cost.inputs.importers.megatron_words import as_arguments, read_config

_SOURCE: Final = "volcengine/verl@b178a3cd verl/trainer/config/"
_ACTOR: Final = "actor_rollout_ref.actor."
_MEGATRON: Final = f"{_ACTOR}megatron."
_OVERRIDE: Final = "override_transformer_config."
_OFFLOAD: Final = ("param_offload", "grad_offload", "optimizer_offload")


def _recognises(foreign: Foreign) -> bool:
    return any(word.lstrip("+").startswith("actor_rollout_ref.") for word in _words(foreign))


def _words(foreign: Foreign) -> list[str]:
    return [word for words in (foreign.script.commands if foreign.script else ()) for word in words]


def _read(foreign: Foreign, reading: FileReading) -> None:
    pairs = (word.lstrip("+").split("=", 1) for word in _words(foreign) if "=" in word and not word.startswith("-"))
    keys = Keys({key: _value(value) for key, value in pairs}, foreign.file)
    _model(keys, reading)
    world = _world(keys)
    if any("megatron" in word for word in _words(foreign)):
        _of_megatron(keys, reading, foreign, world)
    else:
        _of_fsdp(keys, reading, foreign.dp or world)
    for key in keys.rest():
        if not key.startswith(_ACTOR) and key.startswith(("critic.", "actor_rollout_ref.ref.", "reward_model.")):
            reading.ignore(key, "other models beside the actor are not priced", priced=key.endswith("model.path"))
        else:
            reading.ignore(key, "is not known here, or changes no figure that is priced")


def _value(text: str) -> Any:
    word = text.strip("'\"")
    if word.isascii() and word.isdigit() and len(word) < 17:
        return int(word)
    return {"True": True, "true": True, "False": False, "false": False, "null": None}.get(word, word)


def _model(keys: Keys, reading: FileReading) -> None:
    path = str(keys.get("actor_rollout_ref.model.path") or "")
    name_model(reading, path, f"actor_rollout_ref.model.path {path}")


def _world(keys: Keys) -> int | None:
    each, nodes = keys.number("trainer.n_gpus_per_node"), keys.number("trainer.nnodes") or 1
    return each * nodes if each else None


def _length(keys: Keys, sp: int) -> int:
    """Tokens of a micro-batch: packed ones, or a prompt and a response at their full length."""
    if keys.on(f"{_ACTOR}use_dynamic_bsz"):
        return (keys.number(f"{_ACTOR}ppo_max_token_len_per_gpu") or 16384) * sp
    return (keys.number("data.max_prompt_length") or 512) + (keys.number("data.max_response_length") or 512)


def _batch(keys: Keys) -> int:
    """Responses of an optimizer step (megatron_workers.py:354): prompts of a mini-batch x responses of each."""
    return (keys.number(f"{_ACTOR}ppo_mini_batch_size") or 256) * (keys.number("actor_rollout_ref.rollout.n") or 1)


def _of_megatron(keys: Keys, reading: FileReading, foreign: Foreign, world: int | None) -> None:
    found = {key: keys.get(key) for key in keys.given if key.startswith(_MEGATRON)}
    fields = {key.removeprefix(_MEGATRON).removeprefix(_OVERRIDE): value for key, value in found.items()}
    for name in _OFFLOAD:
        if fields.pop(name, False):
            reading.ignore(f"{_MEGATRON}{name}", "states are priced on the device", priced=True)
    sp = fields.get("context_parallel_size") or 1
    packed = keys.on(f"{_ACTOR}use_dynamic_bsz")
    fields |= {
        "bf16": True,  # engine/megatron.yaml: dtype
        "use_distributed_optimizer": fields.get("use_distributed_optimizer", True),
        "sequence_parallel": fields.get("sequence_parallel", True),
        "moe_token_dispatcher_type": fields.get("moe_token_dispatcher_type", "alltoall"),
        "seq_length": _length(keys, sp),
        "micro_batch_size": 1 if packed else keys.number(f"{_ACTOR}ppo_micro_batch_size_per_gpu") or 1,
    }
    if not packed:
        fields["global_batch_size"] = _batch(keys)
    fields.pop("vanilla_mbridge", None)
    read_config(foreign, reading, as_arguments(fields, foreign.file), world)
    if packed:
        reading.put("micro_batches", reading.settings["pp"])
        why = "how many packed micro-batches a step has depends on its responses; taken: as many as stages"
        reading.assume("micro_batches", reading.settings["pp"], why)


def _of_fsdp(keys: Keys, reading: FileReading, world: int | None) -> None:
    """FSDP with Ulysses of so many ranks; strategy fsdp where no Megatron is named (config/engine/fsdp.yaml)."""
    sp = keys.number(f"{_ACTOR}ulysses_sequence_parallel_size") or 1
    if world is None or world % sp:
        raise InputError("the ranks of trainer.n_gpus_per_node do not split", file=keys.file, field="trainer.nnodes")
    reading.put("form", [TRAINED])
    reading.take("sp", sp, "ulysses_sequence_parallel_size")
    reading.take("dp", world // sp, "trainer.n_gpus_per_node x trainer.nnodes")
    reading.take("seq_len", _length(keys, sp), "the tokens of a micro-batch")
    fully_sharded(reading, f"strategy fsdp ({_SOURCE}engine/fsdp.yaml)")
    for name in _OFFLOAD:
        if keys.on(f"{_ACTOR}fsdp_config.{name}"):
            reading.ignore(f"fsdp_config.{name}", "states are priced on the device", priced=True)
    if keys.on("actor_rollout_ref.model.enable_gradient_checkpointing"):
        reading.take("remat", "full", "enable_gradient_checkpointing")


FORMAT: Final = Format("verl", "a verl launch script", _recognises, _read)
