"""YAML of Megatron-Bridge (NVIDIA-NeMo/Megatron-Bridge@067f987d, ConfigContainer) and NeMo: Megatron's fields."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from mla_cost.declared.foreign import BRIDGE_SECTIONS
from mla_cost.inputs.importers.imported import FileReading, Foreign, Format
from mla_cost.inputs.importers.keys import name_model
from mla_cost.inputs.importers.megatron_words import as_arguments, read_config

_MARKS: Final = ("tensor_model_parallel_size", "pipeline_model_parallel_size", "seq_length", "encoder_seq_length")


def _recognises(foreign: Foreign) -> bool:
    model = (foreign.data or {}).get("model")
    return isinstance(model, Mapping) and any(mark in model for mark in _MARKS)


def _read(foreign: Foreign, reading: FileReading) -> None:
    data: Mapping[str, Any] = foreign.data or {}
    fields: dict[str, Any] = {}
    for section in reversed(BRIDGE_SECTIONS):
        held = data.get(section)
        if isinstance(held, Mapping):
            fields |= {key: value for key, value in held.items() if not str(key).startswith("_")}
    fields |= _precision(data)
    if "hidden_size" not in fields:
        words = [fields.get(key) for key in ("hf_path", "hf_model_id", "tokenizer_model", "name")]
        word = next((each for each in words if isinstance(each, str)), "")
        name_model(reading, word, f"the model {word}" if word else "no model is named")
    elif "kv_lora_rank" in fields:
        fields["multi_latent_attention"] = True
    read_config(foreign, reading, as_arguments(fields, foreign.file), _world(data))


def _precision(data: Mapping[str, Any]) -> dict[str, Any]:
    """Precision in a word, as `mixed_precision: bf16_mixed` of Megatron-Bridge or NeMo's `trainer.precision`."""
    trainer = data.get("trainer")
    words = (data.get("mixed_precision"), trainer.get("precision") if isinstance(trainer, Mapping) else None)
    word = next((each for each in words if isinstance(each, str)), "")
    return {"bf16": True} if "bf16" in word else {"fp16": True} if word.startswith(("fp16", "16")) else {}


def _world(data: Mapping[str, Any]) -> int | None:
    trainer = data.get("trainer")
    if not isinstance(trainer, Mapping):
        return None
    nodes, each = trainer.get("num_nodes", 1), trainer.get("devices")
    whole = all(type(number) is int and 0 < number < 2**20 for number in (nodes, each))
    return nodes * each if whole else None


FORMAT: Final = Format("recipe", "a Megatron-Bridge or NeMo recipe YAML", _recognises, _read)
