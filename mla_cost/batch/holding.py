"""What stages keep between steps and send in one, looked up by all that decides it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

import numpy as np

from mla_cost.batch.matrices import Floats, Ints
from mla_cost.batch.pipelines import UNITS
from mla_cost.batch.points import NOT_OF_STATES, Points, distinct
from mla_cost.inputs.config import ModelConfig
from mla_cost.inputs.settings import PlanSettings
from mla_cost.mesh.degrees import Parallel
from mla_cost.mesh.placement import Chunk
from mla_cost.pricing.stage_weights import RankWeights, WeightsAsked
from mla_cost.pricing.step_traffic import Totals, all_calls
from mla_cost.pricing.units import unit_of
from mla_cost.pricing.whole_model import parallel_of, state_settings
from mla_cost.weights.held import Holder, RankParameters, total
from mla_cost.weights.sent import StepCollective, step_collectives
from mla_cost.weights.states import StateSettings, states

STATES: Final = ("weight_bytes", "gradient_bytes", "optimizer_bytes", "buffer_bytes")
STEP: Final = "step_bytes"  # made by the optimizer step beside them, and gone when it ends


class HasWeights(Protocol):
    """A stage as far as its weights go: layers of each kind, and chunks without any, as `StageRows` has them."""

    @property
    def kinds(self) -> tuple[tuple[int, int], ...]: ...
    @property
    def ends(self) -> tuple[Chunk, ...]: ...


class Ranks(NamedTuple):
    """What decides a holder's states: which weights there are, the ranks that share them, and the settings."""

    weights: WeightsAsked
    parallel: Parallel
    keeping: StateSettings


class Group(NamedTuple):
    """For each holder, the distinct ranks among points, and which of them each point has."""

    dense: tuple[Ranks, ...]
    dense_codes: Ints
    expert: tuple[Ranks, ...]
    expert_codes: Ints


def groups(points: Points, form: str) -> Group:
    """The distinct ranks of points of a form that are legal."""
    kept = points.choices(NOT_OF_STATES)
    piped = (points["pp"] > 1).astype(np.int64)
    dense_dp = points["dp"] * points["sp"]
    often = np.array([state_settings(settings).row.every_micro_batch for settings in kept.settings])[kept.codes]
    calls = np.where(often, points["micro_batches"], 1)
    together = (points["sp"] > 1).astype(np.int64)  # a shared sequence's gradients may be reduced in another dtype
    both = (kept.codes, points["vocab_multiple"], calls, together)
    dense = distinct(points["tp"], piped, dense_dp, *both)
    expert_dp = points.stage_ranks // (points["ep"] * points["etp"])
    expert = distinct(points["ep"], points["etp"], expert_dp, *both)
    return Group(
        tuple(_ranks(points, form, kept.settings[kept.codes[at]], int(at)) for at in dense.first),
        dense.codes,
        tuple(_ranks(points, form, kept.settings[kept.codes[at]], int(at)) for at in expert.first),
        expert.codes,
    )


def _ranks(points: Points, form: str, settings: PlanSettings, at: int) -> Ranks:
    whole = points.with_numbers(settings, at)
    return Ranks(WeightsAsked.of(form, whole), parallel_of(whole), state_settings(whole))


class Holding:
    """States and step collectives of one model, each worked out once by the functions that a plan calls."""

    def __init__(self, model: ModelConfig) -> None:
        self.model = model
        self._weights: dict[WeightsAsked, RankWeights] = {}
        self._parts: dict[object, RankParameters] = {}
        self._states: dict[object, tuple[float, ...]] = {}
        self._holds: dict[object, RankParameters] = {}
        self._sent: dict[object, Totals] = {}
        self._calls: dict[object, tuple[StepCollective, ...]] = {}

    def dense(self, stage: HasWeights, ranks: Sequence[Ranks]) -> Floats:
        """The states of dense weights and buffers: a row of STATES and STEP for each ranks. Bytes."""
        return np.array([self._bytes(self._held(stage, each, "dense"), each, "dense") for each in ranks])

    def expert(self, stage: HasWeights, ranks: Sequence[Ranks]) -> Floats:
        """The states of experts. Bytes."""
        return np.array([self._bytes(self._held(stage, each, "expert"), each, "expert") for each in ranks])

    def dense_unit(self, layer: str, ranks: Sequence[Ranks]) -> Floats:
        """What a layer's dense weights are as they are gathered: a row of UNITS for each ranks. Bytes."""
        return np.array([self._unit(layer, each, "dense") for each in ranks])

    def expert_unit(self, layer: str, ranks: Sequence[Ranks]) -> Floats:
        """The same of its experts."""
        return np.array([self._unit(layer, each, "expert") for each in ranks])

    def _unit(self, layer: str, ranks: Ranks, holder: Holder) -> tuple[float, ...]:
        key = ("unit", layer, ranks.weights, _sharing(ranks.parallel, holder), ranks.keeping, holder)
        if key not in self._states:
            held = self._rank_weights(ranks.weights).unit(layer).only(holder)
            found = unit_of(held, ranks.parallel, ranks.keeping)
            self._states[key] = tuple(float(getattr(found, name)) for name in UNITS)
        return self._states[key]

    def _rank_weights(self, asked: WeightsAsked) -> RankWeights:
        if asked not in self._weights:
            self._weights[asked] = RankWeights(self.model, asked)
        return self._weights[asked]

    def dense_sent(self, stage: HasWeights, ranks: Ranks) -> Totals:
        """What is sent for dense weights in the optimizer step."""
        return self._collectives(self._held(stage, ranks, "dense"), ranks, "dense")

    def expert_sent(self, stage: HasWeights, ranks: Ranks) -> Totals:
        """What is sent for experts."""
        return self._collectives(self._held(stage, ranks, "expert"), ranks, "expert")

    def _held(self, stage: HasWeights, ranks: Ranks, holder: Holder) -> RankParameters:
        """What a stage holds, looked up by its layers and what divides them."""
        key = (holder, stage.kinds, stage.ends, ranks.weights, ranks.parallel.pp > 1)
        if key not in self._holds:
            found = total((count, self._part(part, ranks)) for part, count in _parts(stage))
            self._holds[key] = found.only(holder)
        return self._holds[key]

    def _part(self, chunks: tuple[Chunk, ...], ranks: Ranks) -> RankParameters:
        asked, pp = ranks.weights, ranks.parallel.pp
        key = (chunks, asked, pp > 1)
        if key not in self._parts:
            self._parts[key] = self._rank_weights(asked).parameters(chunks, pp)
        return self._parts[key]

    def _bytes(self, held: RankParameters, ranks: Ranks, holder: Holder) -> tuple[float, ...]:
        key = (holder, held, _sharing(ranks.parallel, holder), ranks.keeping)
        if key not in self._states:
            found = states(held, ranks.parallel, ranks.keeping)
            self._states[key] = tuple(float(getattr(found, name)) for name in (*STATES, STEP))
        return self._states[key]

    def calls(self, stage: HasWeights, ranks: Ranks, holder: Holder) -> tuple[StepCollective, ...]:
        """The collectives of the optimizer step for a stage's weights of this holder."""
        held, degrees = self._held(stage, ranks, holder), ranks.parallel
        key = _sent_key(held, ranks, holder)
        if key not in self._calls:
            self._calls[key] = step_collectives(held, degrees, ranks.keeping)
        return self._calls[key]

    def _collectives(self, held: RankParameters, ranks: Ranks, holder: Holder) -> Totals:
        key = _sent_key(held, ranks, holder)
        if key not in self._sent:
            calls = step_collectives(held, ranks.parallel, ranks.keeping)
            self._sent[key] = Totals(map(all_calls, calls))
        return self._sent[key]


def _sent_key(held: RankParameters, ranks: Ranks, holder: Holder) -> tuple[object, ...]:
    degrees = ranks.parallel
    sharing = (_sharing(degrees, holder), degrees.tp, degrees.pp > 1, degrees.num_micro_batches, degrees.sp > 1)
    return holder, held, sharing, ranks.keeping


def _parts(stage: HasWeights) -> list[tuple[tuple[Chunk, ...], int]]:
    """Chunks that add up to a stage's weights: one layer of each kind, and all that is no layer."""
    layers = [((Chunk(False, index, 1, 0, False),), count) for index, count in stage.kinds]
    return [*layers, (stage.ends, 1)]


def _sharing(degrees: Parallel, holder: Holder) -> int:
    return degrees.dense_dp if holder == "dense" else degrees.expert_dp
