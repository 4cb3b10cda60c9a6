"""What one rank of a stage holds of a model's weights: those that the programs of its layers use, by their dims.

Which weights a program has is decided by few of a plan's settings (`WeightsAsked`): no kernel, scheme or policy adds
any. So each layer is run once, forward, on one rank of a sequence and of the experts, and its weights have their sizes
at the degrees asked for. What no program describes is added from `weights.parameters`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import NamedTuple

from mla_cost.declared import defaults
from mla_cost.declared.forms import FORMS
from mla_cost.declared.layers import LAYERS, TIED
from mla_cost.declared.layers import named as declared_as
from mla_cost.declared.profiles import PROFILES
from mla_cost.inputs.config import ModelConfig
from mla_cost.inputs.settings import PlanSettings
from mla_cost.language.dims import base_values, predicates, predicates_of
from mla_cost.mesh.placement import Chunk
from mla_cost.pricing.compile import weights
from mla_cost.pricing.key import Key, form_of
from mla_cost.pricing.resolve import layer_sizes, require_present, symbol_values
from mla_cost.pricing.stage_layers import ENDS, MODULE, VARIANTS, Named, layer_name, layers_of
from mla_cost.weights.held import Held, RankParameters, placed, rank_parameters
from mla_cost.weights.parameters import LayerKind, layer_kinds, undeclared_weights

_ALONE = frozenset({"P", "E", "T"})  # one rank of a sequence, of the experts and of each of them


class WeightsAsked(NamedTuple):
    """What of a plan decides the weights of a rank."""

    form: str
    profile: str
    down_projections: str
    dtype: str
    vocab_multiple: int
    tp: int
    ep: int
    etp: int

    @classmethod
    def of(cls, form: str, settings: PlanSettings) -> WeightsAsked:
        """That of a form under these settings."""
        return cls(form, *(getattr(settings, name) for name in cls._fields[1:]))


class RankWeights:
    """The weights of one rank, each layer of a model read once.

    Raises:
        Illegal: where weights are asked for, of a layer that the profile has no program for.

    """

    def __init__(self, model: ModelConfig, asked: WeightsAsked) -> None:
        self.model = model
        self.asked = asked
        self._profile = PROFILES[asked.profile]
        self._kinds = layer_kinds(model)
        self._layers: dict[str, tuple[Held, ...]] = {}
        self._values = _values(model, asked)

    def of(self, layer: str) -> tuple[Held, ...]:
        """The weights that the program of a layer uses, by the names that they have in it."""
        if layer not in self._layers:
            self._layers[layer] = tuple(self._read(layer))
        return self._layers[layer]

    def parameters(self, chunks: Sequence[Chunk], pp: int) -> RankParameters:
        """The sums over a stage of one of `pp` stages; legal degrees are assumed."""
        places = self._places(chunks)
        alike = Counter(place._replace(part=place.part.partition(" ")[0] + " ") for place in places)
        own = ((count, held) for place, count in alike.items() for held in self._own(place))
        return rank_parameters((*own, *((1, held) for held in self._shared(places, pp))))

    def each(self, chunks: Sequence[Chunk], pp: int) -> Iterator[Held]:
        """Every weight that `parameters` counts: layer by layer, then modules that predict further ahead, then ends."""
        places = self._places(chunks)
        for place in sorted(places, key=lambda place: (place.part == ENDS, place.part.startswith(MODULE))):
            yield from self._own(place)
        yield from self._shared(places, pp)

    def unit(self, layer: str) -> RankParameters:
        """All weights that a layer uses, those among them that no program describes included."""
        every = [*self.of(layer), *(held for kind in self._of_kind(layer) for held in self._undeclared("", kind))]
        return rank_parameters((1, held) for held in every)

    def _of_kind(self, layer: str) -> list[LayerKind]:
        """The kind of a transformer layer; none of an end."""
        if LAYERS[layer.partition(" ")[0]].role != "layer":
            return []
        return [next(kind for kind in self._kinds if layer_name(self.model, kind) == layer)]

    def _places(self, chunks: Sequence[Chunk]) -> list[Named]:
        return [place for chunk in chunks for place in layers_of(self.model, self._kinds, self._profile, chunk)]

    def _read(self, layer: str) -> Iterator[Held]:
        key = _key(self.asked, layer, self._values)
        require_present(self._profile, key.predicates.zeros)
        for weight in weights(key):
            elements = key.predicates.elements(weight.dims).at(self._values)
            sizes = [key.predicates.elements((dim,)).at(self._values) for dim in weight.dims]
            yield placed(weight.label, weight.dims, elements, weight.dtype, self.asked.tp, sizes)

    def _own(self, place: Named) -> Iterator[Held]:
        """The weights of a layer that no other layer of its stage uses."""
        layer = LAYERS[place.declared]
        titles = {**form_of(self.asked.form).titles, **layer.titles}
        if layer.role == "head" and place.part.startswith(MODULE):
            titles |= LAYERS[declared_as("ahead")].titles
        ends = self._ends if layer.role == "ends" else frozenset()
        for held in self.of(place.layer):
            if held.name not in layer.shares:
                part = ENDS if held.name in ends else place.part
                yield held._replace(part=part, name=titles.get(held.name, held.name))
        if place.kind is not None:
            yield from self._undeclared(place.part, place.kind)

    @property
    def _ends(self) -> frozenset[str]:
        """The weights of the head, which a module together with it has as well."""
        return frozenset(held.name for held in self.of(declared_as("head")))

    def _undeclared(self, part: str, kind: LayerKind) -> Iterator[Held]:
        """What no program describes: whole on every rank."""
        for weight in undeclared_weights(self.model, kind):
            dtype, over_tp = weight.dtype or self.asked.dtype, self.asked.tp > 1
            matrix = len(weight.shape) > 1
            trained, rows = weight.trained, weight.shape[0]
            yield Held(part, weight.name, "dense", dtype, weight.elements, matrix, over_tp, trained=trained, rows=rows)

    def _shared(self, places: Sequence[Named], pp: int) -> Iterator[Held]:
        """The weights of which the stage has one; copies of the embedding are kept equal with another stage's."""
        tied = TIED if self.model.tied_embeddings else {}
        embedding = LAYERS[declared_as("embedding")]
        copied = pp > 1 and bool(self.model.tied_embeddings or self.model.num_mtp_layers)
        found: dict[str, Held] = {}
        for place in places:
            layer = LAYERS[place.declared]
            for held in self.of(place.layer):
                name = tied.get(held.name, held.name)
                if held.name in layer.shares and name not in found:
                    title = {**layer.titles, **embedding.titles}.get(name, name)
                    shared = copied and name in embedding.shares
                    found[name] = held._replace(part=ENDS, name=title, shared=shared)
        yield from found.values()


def _key(asked: WeightsAsked, layer: str, values: dict[str, int]) -> Key:
    """The program of a layer that has its weights and as little beside them as can be."""
    declared, _, variant = layer.partition(" ")
    mixer, indexer = VARIANTS[variant]
    divided = asked.tp > 1
    return Key(
        form=form_of(asked.form).name,
        scheme=FORMS[asked.form].scheme,
        kernel=defaults.ATTENTION_KERNEL,
        predicates=predicates(
            _ALONE, predicates_of(values, heads_divided=False).zeros, heads_divided=False, rows_divided=divided
        ),
        dtype=asked.dtype,
        layer=declared,
        profile=asked.profile,
        down_projections=asked.down_projections if divided else "replicated",
        mixer=mixer,
        indexer=indexer,
    )


def _values(model: ModelConfig, asked: WeightsAsked) -> dict[str, int]:
    """The sizes of weights at these degrees: of the shortest sequence that tp divides."""
    degrees = {name: getattr(asked, name) for name in ("tp", "ep", "etp", "vocab_multiple")}
    least = SimpleNamespace(seq_len=asked.tp, sp=1, micro_batch=1, loss_chunks=1, **degrees)
    return base_values({**symbol_values(model, least), **layer_sizes(model, least)}, heads_divided=False)
