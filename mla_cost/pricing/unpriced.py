"""Why a whole model is not priced: what can never be first, then every fact that is missing, all of them at once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from mla_cost.declared import defaults
from mla_cost.declared.profiles import PROFILES
from mla_cost.inputs.config import ModelConfig
from mla_cost.weights.parameters import gaps

_EACH: Final = "bytes that one such layer keeps for backward, per micro-batch and rank; 0 leaves them out"


def refusal(model: ModelConfig, profile: str = defaults.PROFILE) -> str | None:
    """Why no plan prices all layers of `model`, with the way out; None where one can.

    profile: a name, whose own way to price one block alone is reported.
    """
    never = several_blocks(model)
    if never is not None:
        return f"{never}, whatever is stated; {block_alone(profile)}"
    found = [*gaps(model), *_kept(model)]
    if not found:
        return None
    lacks, ways_out = zip(*found, strict=True)
    facts = " and ".join(ways_out)
    return (
        f"{model.name} cannot be priced whole: {'; '.join(lacks)}; state {facts}, with --set facts.NAME=NUMBER or in a "
        f"copy of the model's file, or {block_alone(profile)}"
    )


def several_blocks(model: ModelConfig) -> str | None:
    """Why a layer of more than one MLA block is not priced; None where no layer has several."""
    layers, blocks = model.num_layers or 0, model.num_mla_layers or 0
    if not layers or blocks <= layers:
        return None
    return f"a layer of {model.name} holds {blocks // layers} MLA blocks, and such layers are not priced"


def block_alone(profile: str) -> str:
    """The words for pricing one block, which a profile of whole layers has not."""
    own = PROFILES[profile].texts if profile in PROFILES else None
    return "price its MLA block alone with --scope attention" + (f" --profile {defaults.PROFILE}" if own else "")


def _kept(model: ModelConfig) -> Iterator[tuple[str, str]]:
    """The bytes that the user has to state, since no dims describe what keeps them."""
    others = max(0, (model.num_layers or 0) - (model.num_mla_layers or 0))
    if others and model.other_layer_bytes is None:
        yield f"what its {others} layers without MLA keep for backward is not known", f"other_layer_bytes ({_EACH})"
    own = model.indexer_layer_indices
    if model.indexer is not None and own != () and model.indexer_layer_bytes is None:
        yield "what an indexer keeps for backward is not known", f"indexer_layer_bytes ({_EACH})"
