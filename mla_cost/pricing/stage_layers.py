"""The layers of a chunk by the names of their declarations, which a model's kinds of layers choose."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from mla_cost.declared.layers import LAYERS
from mla_cost.declared.layers import named as declared_as
from mla_cost.inputs.config import ModelConfig
from mla_cost.language.program import Profile
from mla_cost.mesh.placement import Chunk
from mla_cost.pricing.resolve import Illegal
from mla_cost.pricing.unpriced import several_blocks
from mla_cost.weights.parameters import LayerKind, mtp_kind

WITHOUT_MLA: Final = "without MLA"
WITH_INDEXER: Final = "with indexer"
# variant of a declaration: the mixer and the indexer that its texts ask about
VARIANTS: Final[Mapping[str, tuple[str, str]]] = {
    "": ("mla", "none"),
    WITHOUT_MLA: ("other", "none"),
    WITH_INDEXER: ("mla", "own"),
}
LAYER: Final = "layer "
MODULE: Final = "mtp "
ENDS: Final = "ends"


class Named(NamedTuple):
    """A layer by its declaration and variant, and the part of the model that it is: `layer 3`, `mtp 0`, `ends`.

    kind: of a transformer layer, or of the one in a module that predicts further ahead; None of any other.
    """

    part: str
    layer: str
    kind: LayerKind | None = None

    @property
    def declared(self) -> str:
        """Its declaration without the variant."""
        return self.layer.partition(" ")[0]


def layer_name(model: ModelConfig, kind: LayerKind) -> str:
    """The declaration that a layer kind runs, with its variant: `moe`, `dense without MLA`.

    Raises:
        Illegal: a kind that no declaration covers, by name. What a user has to state is asked for before, all at once.

    """
    never = several_blocks(model)
    if never is not None:
        raise Illegal(never)
    declared = declared_as("layer", experts=kind.moe)
    if not kind.attention:
        return f"{declared} {WITHOUT_MLA}"
    return f"{declared} {WITH_INDEXER}" if kind.indexer else declared


def layers_of(model: ModelConfig, kinds: Sequence[LayerKind], profile: Profile, chunk: Chunk) -> list[Named]:
    """The layers of a chunk in order: embedding, layers, modules that predict further ahead, the head.

    The last module and the head are one program where the profile has no texts of its own, as they share weights.
    """
    found = [Named(ENDS, declared_as("embedding"))] * chunk.embedding
    found += [Named(f"{LAYER}{index}", layer_name(model, kinds[index]), kinds[index]) for index in chunk.layers]
    joined = bool(chunk.num_mtp and chunk.loss and not profile.texts)
    for index in range(chunk.num_mtp - joined):
        found += _module(model, index)
    if joined:
        return [*found, _last_module(model, chunk.num_mtp - 1)]
    return [*found, *[Named(ENDS, declared_as("head"))] * chunk.loss]


def _module(model: ModelConfig, index: int) -> list[Named]:
    part, kind = f"{MODULE}{index}", mtp_kind(model)
    layer = Named(part, layer_name(model, kind), kind)
    return [Named(part, declared_as("ahead")), layer, Named(part, declared_as("head"))]


def _last_module(model: ModelConfig, index: int) -> Named:
    kind = mtp_kind(model)
    declared, space, variant = layer_name(model, kind).partition(" ")
    ends = declared_as("ends", experts=LAYERS[declared].experts)
    return Named(f"{MODULE}{index}", f"{ends}{space}{variant}", kind)
