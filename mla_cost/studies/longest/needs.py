"""What a point needs and what the device leaves for it, at both scopes: whole numbers only, no results are built."""

from __future__ import annotations

from collections.abc import Hashable
from functools import cached_property
from typing import Any, NamedTuple, Protocol

from mla_cost.declared import defaults
from mla_cost.declared.profiles import PROFILES
from mla_cost.inputs.config import DeviceConfig, ModelConfig
from mla_cost.inputs.settings import PlanSettings
from mla_cost.language.evaluate import ExactLimitError
from mla_cost.mesh.degrees import Parallel
from mla_cost.mesh.placement import Chunk, stages
from mla_cost.pricing import whole_model
from mla_cost.pricing.block import figures
from mla_cost.pricing.persistent import persistent_buffers
from mla_cost.pricing.resolve import Illegal, Point, resolve
from mla_cost.pricing.stage import ChunkCost, Segments, activations
from mla_cost.pricing.stage_cost import StageCost
from mla_cost.pricing.stage_layers import layer_name
from mla_cost.pricing.stage_weights import RankWeights, WeightsAsked
from mla_cost.pricing.whole_model import parallel_of, segments_of, state_settings
from mla_cost.results import Verdict
from mla_cost.weights.held import RankParameters
from mla_cost.weights.parameters import LayerKind, layer_kinds
from mla_cost.weights.states import States, states


class FitQuestion(NamedTuple):
    """One form of a model on one device; the settings name a kernel. shared: what several questions look up.

    global_batch: sequences of an optimizer step; None where nobody said, and a pipeline is then taken to be full.
    max_idle: per cent of its schedule that a stage of the fewest devices may wait, as in a search.
    """

    model: ModelConfig
    device: DeviceConfig
    form: str
    settings: PlanSettings
    shared: dict[Hashable, Any]
    global_batch: int | None = None
    max_idle: int = defaults.MAX_IDLE


class Needs(Protocol):
    """What a scope has to tell about settings that differ from the question's in seq_len and degrees only."""

    def peak(self, settings: PlanSettings) -> int:
        """The allocated peak. Bytes on one rank.

        Raises:
            Illegal: no program exists.

        """
        ...

    def verdict(self, settings: PlanSettings) -> Verdict:
        """The verdict that a plan gives. Raises as `peak`."""
        ...


def needs_of(question: FitQuestion) -> Needs:
    """What the scope of a question needs."""
    return ModelNeeds(question) if question.settings.scope == "model" else AttentionNeeds(question)


def room(verdict: Verdict, peak: int) -> int:
    """What the device leaves for an allocated peak: usable memory less what stands beside it. Bytes."""
    if verdict.headroom_bytes is None:
        raise Illegal(verdict.reason)
    return verdict.headroom_bytes + peak


def smallest(settings: PlanSettings) -> PlanSettings:
    """The settings with the smallest length, on as few ranks as can be."""
    return settings.model_copy(update={"sp": 1, "seq_len": 2 * settings.tp})


class AttentionNeeds:
    """A block, or a stack of equal blocks."""

    def __init__(self, question: FitQuestion) -> None:
        self.question = question

    def peak(self, settings: PlanSettings) -> int:
        """As `Needs`."""
        model, device, form = self.question[:3]
        return figures(resolve(model, form, settings), device.family, settings.layers).allocated_peak_bytes

    def verdict(self, settings: PlanSettings) -> Verdict:
        """As `Needs`."""
        model, device, form = self.question[:3]
        point = resolve(model, form, settings)
        return whole_model.verdict(model, device, settings, point, self.peak(settings))


class ModelNeeds:
    """The worst stage of the whole model. Layers are evaluated once for all devices of a family."""

    def __init__(self, question: FitQuestion) -> None:
        self.question = question

    def peak(self, settings: PlanSettings) -> int:
        """As `Needs`."""
        return max(cost.peak for cost in self.costs(settings))

    def verdict(self, settings: PlanSettings) -> Verdict:
        """As `Needs`."""
        return self._verdict(settings, self.peak(settings))

    def room(self, settings: PlanSettings) -> int:
        """What the device leaves for an allocated peak. Bytes."""
        return room(self._verdict(settings, 0), 0)

    def _verdict(self, settings: PlanSettings, peak: int) -> Verdict:
        model, device = self.question[:2]
        return whole_model.verdict(model, device, settings, self._point, peak)

    @cached_property
    def _point(self) -> Point:
        """A point of the smallest length: which kernel trains it is the same for all lengths and degrees."""
        question = self.question
        layer = layer_name(question.model, self._kinds[-1]).partition(" ")[0]
        return resolve(question.model, question.form, smallest(question.settings), layer)

    def held(self, settings: PlanSettings) -> list[RankParameters]:
        """What a rank of each stage has of the model. Raises Illegal as `peak`, but for what a form refuses."""
        whole_model.require_legal(self.question.model, settings)
        return [elements for _, elements in self._stages(settings, parallel_of(settings))]

    def costs(self, settings: PlanSettings) -> list[StageCost]:
        """Every stage of the pipeline. Raises as `peak`."""
        whole_model.require_form(self.question.model, self.question.form, settings)
        whole_model.require_legal(self.question.model, settings)
        parallel = parallel_of(settings)
        return [
            self._cost(settings, parallel, at, chunks, held)
            for at, (chunks, held) in enumerate(self._stages(settings, parallel))
        ]

    def _cost(
        self, settings: PlanSettings, parallel: Parallel, at: int, chunks: tuple[Chunk, ...], held: RankParameters
    ) -> StageCost:
        costs = tuple(self._chunk(settings, chunk) for chunk in chunks)
        schedule = parallel._replace(tp=1, sp=1, ep=1, etp=1, dp=1)  # so that layouts share what is worked out for one
        active = activations(schedule, at, costs)
        buffers = persistent_buffers(costs, PROFILES[settings.profile], self.question.device.arch)
        return StageCost(at, chunks, costs, held, self.states(settings, held), active, buffers)

    def states(self, settings: PlanSettings, held: RankParameters) -> States:
        """What a rank keeps between steps, looked up by all that decides it."""
        parallel, shared = parallel_of(settings), self.question.shared
        key = ("states", held, parallel.dense_dp, parallel.expert_dp, parallel.pp > 1)
        if key not in shared:
            shared[key] = states(held, parallel, state_settings(settings))
        found: States = shared[key]
        return found

    def _chunk(self, settings: PlanSettings, chunk: Chunk) -> ChunkCost:
        """A chunk of layers; chunks of the same kinds of layers cost the same."""
        shared = self.question.shared
        key = ("chunk", self._layers_key(settings), self._alike(chunk))
        if key not in shared:
            try:
                shared[key] = self._segments(settings).chunk(chunk)
            except ExactLimitError as error:
                raise Illegal(f"{error}: bytes are exact below 2^53 only; make the plan smaller") from None
        found: ChunkCost = shared[key]
        return found

    def _alike(self, chunk: Chunk) -> Hashable:
        kinds = self._kinds
        return chunk.embedding, tuple(kinds[at] for at in chunk.layers), chunk.num_mtp, chunk.loss

    @cached_property
    def _kinds(self) -> tuple[LayerKind, ...]:
        shared = self.question.shared
        if "kinds" not in shared:
            shared["kinds"] = layer_kinds(self.question.model)
        found: tuple[LayerKind, ...] = shared["kinds"]
        return found

    def _layers_key(self, settings: PlanSettings) -> Hashable:
        """All that the cost of a layer depends on, of what a question leaves open."""
        which = (self.question.form, settings.kernel, settings.value_padding, self.question.device.family)
        own = (*which, settings.seq_len, settings.sp, settings.tp, settings.ep)
        if state_settings(settings).gathering is None:
            return own
        degrees = parallel_of(settings)
        return (*own, degrees.dense_dp, degrees.expert_dp)

    def _segments(self, settings: PlanSettings) -> Segments:
        model, device, form, _, shared = self.question[:5]
        key = ("segments", self._layers_key(settings))
        if key not in shared:
            weights = self._weights(WeightsAsked.of(form, settings))
            shared[key] = segments_of(model, form, settings, device.family, weights)
        found: Segments = shared[key]
        return found

    def _stages(self, settings: PlanSettings, parallel: Parallel) -> list[tuple[tuple[Chunk, ...], RankParameters]]:
        """The chunks of each stage and what a rank holds of them, which neither sp, dp nor the length changes."""
        model, shared = self.question.model, self.question.shared
        key = ("stages", self.question.form, parallel.tp, parallel.pp, parallel.ep, parallel.etp, parallel.layout)
        if key not in shared:
            laid_out = stages(parallel, model.num_layers or 0, model.num_mtp_layers or 0)
            shared[key] = [(chunks, self._held(settings, parallel, chunks)) for chunks in laid_out]
        found: list[tuple[tuple[Chunk, ...], RankParameters]] = shared[key]
        return found

    def _held(self, settings: PlanSettings, parallel: Parallel, chunks: tuple[Chunk, ...]) -> RankParameters:
        """Stages with layers of the same kinds hold the same number of elements."""
        shared, asked = self.question.shared, WeightsAsked.of(self.question.form, settings)
        alike = tuple(map(self._alike, chunks))
        key = ("held", asked, parallel.pp, alike)
        if key not in shared:
            shared[key] = self._weights(asked).parameters(chunks, parallel.pp)
        found: RankParameters = shared[key]
        return found

    def _weights(self, asked: WeightsAsked) -> RankWeights:
        """The weights of a rank, read once."""
        shared = self.question.shared
        if asked not in shared:
            shared[asked] = RankWeights(self.question.model, asked)
        found: RankWeights = shared[asked]
        return found
