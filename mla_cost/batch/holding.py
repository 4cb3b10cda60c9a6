"""What stages keep between steps and send in one, looked up by all that decides it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np

from mla_cost.batch.matrices import Floats, Ints
from mla_cost.batch.pipelines import Stage
from mla_cost.batch.points import NOT_OF_STATES, Points, distinct
from mla_cost.inputs.config import ModelConfig
from mla_cost.inputs.settings import PlanSettings
from mla_cost.mesh.degrees import Parallel
from mla_cost.mesh.placement import Chunk
from mla_cost.pricing.whole_model import parallel_of, state_settings
from mla_cost.weights.states import (
    RankParameters,
    StateSettings,
    StepCollective,
    rank_parameters,
    states,
    step_collectives,
)

STATES: Final = ("weight_bytes", "gradient_bytes", "optimizer_bytes", "buffer_bytes")
STEP: Final = "step_bytes"  # made by the optimizer step beside them, and gone when it ends


class Held(NamedTuple):
    """One holder's elements on a rank, as `RankParameters` has them."""

    elements: int
    tp_summed: int = 0
    shared: int = 0
    buffers: int = 0


class Ranks(NamedTuple):
    """What decides a holder's states: the weights' own degrees, the ranks that share them, and the settings."""

    parallel: Parallel
    keeping: StateSettings


class Group(NamedTuple):
    """For each holder, the distinct ranks among points, and which of them each point has."""

    dense: tuple[Ranks, ...]
    dense_codes: Ints
    expert: tuple[Ranks, ...]
    expert_codes: Ints


def groups(points: Points) -> Group:
    """The distinct ranks of points that are legal."""
    kept = points.choices(NOT_OF_STATES)
    piped = (points["pp"] > 1).astype(np.int64)
    dense_dp = points["dp"] * points["sp"]
    # ZeRO-2 alone sends as often as there are micro-batches
    shared = np.array([settings.sharding == "zero2" for settings in kept.settings])[kept.codes]
    calls = np.where(shared, points["micro_batches"], 1)
    together = (points["sp"] > 1).astype(np.int64)  # a shared sequence's gradients may be reduced in another dtype
    both = (kept.codes, points["vocab_multiple"], calls, together)
    dense = distinct(points["tp"], piped, dense_dp, *both)
    expert_dp = points.stage_ranks // (points["ep"] * points["etp"])
    expert = distinct(points["ep"], points["etp"], expert_dp, *both)
    return Group(
        tuple(_ranks(points, kept.settings[kept.codes[at]], int(at)) for at in dense.first),
        dense.codes,
        tuple(_ranks(points, kept.settings[kept.codes[at]], int(at)) for at in expert.first),
        expert.codes,
    )


def _ranks(points: Points, settings: PlanSettings, at: int) -> Ranks:
    whole = points.with_numbers(settings, at)
    return Ranks(parallel_of(whole), state_settings(whole))


class Holding:
    """States and step collectives of one model, each worked out once by the functions that a plan calls."""

    def __init__(self, model: ModelConfig) -> None:
        self.model = model
        self._parts: dict[object, RankParameters] = {}
        self._states: dict[object, tuple[float, ...]] = {}
        self._holds: dict[object, Held] = {}
        self._sent: dict[object, tuple[StepCollective, ...]] = {}

    def dense(self, stage: Stage, ranks: Sequence[Ranks]) -> Floats:
        """The states of dense weights and buffers: a row of STATES and STEP for each ranks. Bytes."""
        return np.array([self._bytes(self._dense(stage, each), each, "dense") for each in ranks])

    def expert(self, stage: Stage, ranks: Sequence[Ranks]) -> Floats:
        """The states of experts. Bytes."""
        return np.array([self._bytes(self._expert(stage, each), each, "expert") for each in ranks])

    def dense_sent(self, stage: Stage, ranks: Ranks) -> tuple[StepCollective, ...]:
        """What is sent for dense weights in the optimizer step."""
        return self._collectives(self._dense(stage, ranks), ranks, "dense")

    def expert_sent(self, stage: Stage, ranks: Ranks) -> tuple[StepCollective, ...]:
        """What is sent for experts."""
        return self._collectives(self._expert(stage, ranks), ranks, "expert")

    def _dense(self, stage: Stage, ranks: Ranks) -> Held:
        return self._known("dense", stage, ranks, self._dense_held)

    def _expert(self, stage: Stage, ranks: Ranks) -> Held:
        return self._known("expert", stage, ranks, self._expert_held)

    def _known(self, holder: str, stage: Stage, ranks: Ranks, ask: Callable[[Stage, Ranks], Held]) -> Held:
        """What a stage holds, looked up by its layers and what divides them."""
        degrees = ranks.parallel
        key = (holder, stage.kinds, stage.ends, degrees.tp, degrees.ep, degrees.etp, degrees.pp > 1, ranks.keeping)
        if key not in self._holds:
            self._holds[key] = ask(stage, ranks)
        return self._holds[key]

    def _dense_held(self, stage: Stage, ranks: Ranks) -> Held:
        found = [(count, self._part(part, ranks)) for part, count in _parts(stage)]
        return Held(
            sum(count * part.dense for count, part in found),
            sum(count * part.tp_summed for count, part in found),
            sum(count * part.shared for count, part in found),
            sum(count * part.buffers for count, part in found),
        )

    def _expert_held(self, stage: Stage, ranks: Ranks) -> Held:
        return Held(sum(count * self._part(part, ranks).expert for part, count in _parts(stage)))

    def _part(self, chunks: tuple[Chunk, ...], ranks: Ranks) -> RankParameters:
        degrees = ranks.parallel
        key = (chunks, degrees.tp, degrees.ep, degrees.etp, degrees.pp > 1, ranks.keeping)
        if key not in self._parts:
            self._parts[key] = rank_parameters(self.model, degrees, chunks, ranks.keeping)
        return self._parts[key]

    def _bytes(self, held: Held, ranks: Ranks, holder: str) -> tuple[float, ...]:
        key = (holder, held, _sharing(ranks.parallel, holder), ranks.keeping)
        if key not in self._states:
            found = states(_whole(held, holder), ranks.parallel, ranks.keeping)
            self._states[key] = tuple(float(getattr(found, name)) for name in (*STATES, STEP))
        return self._states[key]

    def _collectives(self, held: Held, ranks: Ranks, holder: str) -> tuple[StepCollective, ...]:
        degrees = ranks.parallel
        sharing = (_sharing(degrees, holder), degrees.tp, degrees.pp > 1, degrees.micro_batches, degrees.sp > 1)
        key = (holder, held, sharing, ranks.keeping)
        if key not in self._sent:
            self._sent[key] = step_collectives(_whole(held, holder), degrees, ranks.keeping)
        return self._sent[key]


def _parts(stage: Stage) -> list[tuple[tuple[Chunk, ...], int]]:
    """Chunks that add up to a stage's weights: one layer of each kind, and all that is no layer."""
    layers = [((Chunk(False, index, 1, 0, False),), count) for index, count in stage.kinds]
    return [*layers, (stage.ends, 1)]


def _sharing(degrees: Parallel, holder: str) -> int:
    return degrees.dense_dp if holder == "dense" else degrees.expert_dp


def _whole(held: Held, holder: str) -> RankParameters:
    dense, expert = (held.elements, 0) if holder == "dense" else (0, held.elements)
    return RankParameters(dense, expert, held.tp_summed, held.shared, held.buffers)


def sums(calls: Sequence[StepCollective]) -> Mapping[tuple[str, str], int]:
    """Payload and wire bytes of an axis in one optimizer step."""
    found: dict[tuple[str, str], int] = {}
    for call in calls:
        for amount, size in (("payload", call.payload_bytes), ("wire", call.wire_bytes)):
            found[amount, call.axis] = found.get((amount, call.axis), 0) + call.calls * size
    return found
