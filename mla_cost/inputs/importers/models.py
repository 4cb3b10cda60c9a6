"""The model that a foreign file states, as one of the catalogue where that has the same parts, else as its own."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final

from mla_cost.declared import defaults
from mla_cost.inputs import catalog
from mla_cost.inputs.config import ModelConfig
from mla_cost.inputs.importers.imported import FileReading

# what runs of one model vary: stated as facts over the model's own
_VARIES: Final = (
    *("num_layers", "num_mtp_layers", "num_dense_layers", "num_routed_experts", "vocab_size", "vocab_size"),
    *("router_scores", "router_correction_bias", "tied_embeddings", "num_experts_per_token"),
)
# what makes it another model
_SAME: Final = ("intermediate_size", "moe_intermediate_size", "num_shared_experts")


def settle(reading: FileReading) -> dict[str, Any] | None:
    """Put the model into the settings; the model's own file where the catalogue has none like it."""
    if not reading.dims:
        return None
    model = _like(reading)
    if model is None:
        path = reading.file
        reading.settings["model"] = path if os.sep in path else f".{os.sep}{path}"
        return as_file(reading)
    reading.settings["model"] = model.name
    facts = {name: value for name, value in reading.facts.items() if value != _of(model, name)}
    if "vocab_size" not in reading.facts and model.vocab_size is not None:
        why = f"the tokenizer decides the vocabulary; taken: {model.title}'s"
        reading.assume("facts.vocab_size", model.vocab_size, why)
    if "num_layers" in facts:
        facts["num_mla_layers"] = facts["num_layers"]
    modules = facts.pop("num_mtp_layers", None)
    if modules is not None:
        reading.settings["mtp"] = modules
    if facts:
        reading.settings["facts"] = facts
    return None


def as_file(reading: FileReading) -> dict[str, Any]:
    """What the file states of its model, under the keys of a model's file."""
    name = Path(reading.file).stem or "imported"
    layers = reading.facts.get("num_layers")
    facts = {key: value for key, value in reading.facts.items() if value is not None}
    reported = {"name": name, "title": name, "dims": dict(reading.dims), **facts, "num_mla_layers": layers}
    return {**reported, "sources": [reading.file], "verified": True, "verified_basis": "the file itself"}


def _like(reading: FileReading) -> ModelConfig | None:
    """The model of the catalogue with these widths: one that the file names, else the one with fewest differences."""
    alike = [model for model in map(catalog.model, catalog.model_names()) if _same(model, reading)]
    if not alike:
        return None
    hints = " ".join(reading.hints).lower()

    def rank(model: ModelConfig) -> tuple[bool, int, bool, bool, int, str]:
        differing = sum(reading.facts[name] != _of(model, name) for name in _VARIES if name in reading.facts)
        whole = model.uncounted_parts is None and "(" not in model.title  # no "(text)" part of a larger model
        return (
            not _named(model, hints),
            differing,
            not whole,
            model.name != defaults.MODEL,
            len(model.name),
            model.name,
        )

    return min(alike, key=rank)


def _named(model: ModelConfig, hints: str) -> bool:
    names = (model.name, model.title, (model.hf_id or "").rpartition("/")[2], *model.aliases)
    words = {catalog.normalised(part) for word in hints.split() for part in word.rstrip("/").split("/")[-1:]}
    return any(catalog.normalised(name.rpartition("/")[2]) in words for name in names if name)


def _same(model: ModelConfig, reading: FileReading) -> bool:
    mixed = bool(reading.facts.get("num_routed_experts")) == bool(model.num_routed_experts)
    plain = model.indexer is None and model.mla_layer_indices is None and model.num_layers == model.num_mla_layers
    same = all(reading.facts[name] == _of(model, name) for name in _SAME if name in reading.facts)
    return mixed and plain and same and model.dims.model_dump() == reading.dims


def _of(model: ModelConfig, name: str) -> Any:
    """A fact of a model; what it has not is zero where it counts parts."""
    value = getattr(model, name)
    return 0 if value is None and name.startswith("num_") else value
