"""Stages of a pipeline as rows over what layers keep and need: compiled once per layout and schedule."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from mla_cost.batch.array_layers import ArrayLayer
from mla_cost.batch.matrices import Floats, Ints, winners
from mla_cost.declared import defaults
from mla_cost.declared.states import Gathering
from mla_cost.inputs.config import ModelConfig
from mla_cost.inputs.settings import PlanSettings
from mla_cost.language.schedule import PassKind
from mla_cost.mesh.degrees import Parallel
from mla_cost.mesh.placement import Chunk
from mla_cost.mesh.placement import stages as stages_of
from mla_cost.mesh.schedule import worst_passes
from mla_cost.pricing.stage import ChunkCost, Part, Place, Segments, as_allocated, chunk_parts, during
from mla_cost.pricing.step_traffic import passes
from mla_cost.pricing.units import Unit, Units

# what a stage adds up of each layer at its place, in this order
FIGURES: Final = ("kept", "forward", "backward", "hidden", "gradients")
# and of its weights, where they are gathered one unit after another
UNITS: Final = tuple(name for name in Unit._fields if name != "gradients")


_WIDTH: Final = len(FIGURES) + len(UNITS)


class StageRows(NamedTuple):
    """One stage that can be the worst of its pipeline.

    needs, saved_in_flight: rows over what the pipeline reads of FIGURES of its places; a moment takes needs, of which
    `saved_in_flight` belongs to the micro-batches in flight but one. counts: layers at each place in one micro-batch.
    kinds: index of a layer of each kind, and how many of them. ends: what it holds beside transformer layers, as chunks
    without any. passes: chunks whose output, and whose input's gradient, go on.
    """

    stage: int
    needs: Floats
    saved_in_flight: Floats
    counts: tuple[int, ...]
    kinds: tuple[tuple[int, int], ...]
    ends: tuple[Chunk, ...]
    passes: tuple[int, int]


class PipelineRows(NamedTuple):
    """The stages that can be the worst, in order, over the same places of layers.

    senders: those that can send most, whichever was asked for. read: the figure and the place of each column of the
    stages' rows; what no row has is left out.
    """

    places: tuple[Place, ...]
    stages: tuple[StageRows, ...]
    read: tuple[Ints, Ints]
    senders: tuple[StageRows, ...]


class Names:
    """The layers of a model under a profile, chunk by chunk.

    Raises:
        Illegal: a kind of layer that is not priced.

    """

    def __init__(self, model: ModelConfig, profile: str, remat_layers: int | None = None) -> None:
        self.model = model
        settings = PlanSettings().model_copy(update={"profile": profile, "remat_layers": remat_layers})
        self._segments = Segments(model, defaults.BASELINE, settings, as_allocated("none"))
        self._first: dict[Any, int] = {}
        for index, kind in enumerate(self._segments.kinds):
            self._first.setdefault(kind, index)
        self.of(Chunk(True, 0, model.num_layers or 0, model.num_mtp_layers or 0, True))

    def of(self, chunk: Chunk) -> tuple[Place, ...]:
        """What a chunk runs, in order."""
        return tuple(self._segments.places(chunk))

    def kinds(self, chunks: Sequence[Chunk]) -> tuple[tuple[int, int], ...]:
        """For every kind of layer in chunks, the index of one such layer and how many they are."""
        every = Counter(self._segments.kinds[index] for chunk in chunks for index in chunk.layers)
        return tuple(sorted((self._first[kind], count) for kind, count in every.items()))

    def stages(self, parallel: Parallel) -> tuple[tuple[Chunk, ...], ...]:
        """The chunks of each stage."""
        return stages_of(parallel, self.model.num_layers or 0, self.model.num_mtp_layers or 0)


def pipeline(
    names: Names, parallel: Parallel, asked: int | None = None, gathering: Gathering | None = None
) -> PipelineRows:
    """The pipeline of degrees that are legal; asked: the one stage that matters; gathering: of units' weights.

    A stage is dropped where an earlier one of equal layers needs as much at every moment: of equal ones the first is
    the worst.
    """
    laid_out = names.stages(parallel)
    places = tuple(dict.fromkeys(place for chunks in laid_out for chunk in chunks for place in names.of(chunk)))
    kept: list[tuple[Hashable, StageRows]] = []
    for at, chunks in enumerate(laid_out):
        if asked not in {None, at}:
            continue
        alike = (tuple(map(names.of, chunks)), names.kinds(chunks))
        found = stage_rows(names, places, parallel, at, chunks, gathering)
        if not any(same == alike and _covers(other.needs, found.needs) for same, other in kept):
            kept.append((alike, found))
    read = np.flatnonzero(np.any([stage.needs.any(axis=0) for _, stage in kept], axis=0))
    stages = tuple(
        stage._replace(needs=stage.needs[:, read], saved_in_flight=stage.saved_in_flight[:, read]) for _, stage in kept
    )
    senders = stages if asked is None else pipeline(names, parallel).stages
    return PipelineRows(places, stages, (read // len(places), read % len(places)), senders)


def _covers(larger: Floats, smaller: Floats) -> bool:
    """Whether every row is reached by one of the larger."""
    reached: Any = (smaller[:, None, :] <= larger[None, :, :]).all(axis=-1)
    return bool(reached.any(axis=1).all())


def stage_rows(
    names: Names,
    places: Sequence[Place],
    parallel: Parallel,
    at: int,
    chunks: Sequence[Chunk],
    gathering: Gathering | None = None,
) -> StageRows:
    """One stage over those places of layers, the figures of each after those of all for the one before."""
    each = _parts(names, places, chunks, gathering)
    needs, kept = _peak_events(len(places), parallel, at, each)
    won = winners(needs)
    counts = Counter(place for chunk in chunks for place in names.of(chunk))
    return StageRows(
        stage=at,
        needs=needs[won],
        saved_in_flight=kept[won],
        counts=tuple(counts[place] for place in places),
        kinds=names.kinds(chunks),
        ends=tuple(chunk._replace(first=0, num_layers=0) for chunk in chunks),
        passes=passes(chunks),
    )


class _Unit(ArrayLayer):
    """A layer whose figures are unit vectors, and those of its weights where they are gathered."""

    def __init__(self, count: int, place: int) -> None:
        units: Any = np.eye(_WIDTH * count)[place::count]
        kept, forward, backward, hidden, gradients, *weights = units
        super().__init__(kept, forward, backward, gradients, hidden=hidden)
        self.weights = Unit._make((*weights, gradients))


def _parts(
    names: Names, places: Sequence[Place], chunks: Sequence[Chunk], gathering: Gathering | None
) -> list[tuple[Any, Sequence[Part], Sequence[Part]]]:
    """The parts of every chunk, in unit vectors."""
    units = {place: _Unit(len(places), index) for index, place in enumerate(places)}
    found: list[tuple[Any, Sequence[Part], Sequence[Part]]] = []
    for chunk in chunks:
        segments: Any = [units[place] for place in names.of(chunk)]  # they add up only
        gathered = None if gathering is None else Units(gathering, [each.weights for each in segments])
        found.append(chunk_parts(chunk, segments, gathered))
    return found


def _peak_events(
    count: int, parallel: Parallel, at: int, each: Sequence[tuple[Any, Sequence[Part], Sequence[Part]]]
) -> tuple[Floats, Floats]:
    """Every pass of the schedule at every layer of the chunk at work: what it needs, and what others keep of it."""
    nothing: Any = np.zeros(_WIDTH * count)
    needs, kept = [], []
    for run in worst_passes(parallel, at):
        parts: Sequence[Part | None] = each[run.chunk][1 if run.kind is PassKind.FORWARD else 2] or [None]
        for part in parts:
            moment = during(run, [ChunkCost((), nothing + whole, part, part) for whole, _, _ in each])
            needs.append(nothing + moment.bytes)
            kept.append(nothing + moment.saved_in_flight)
    return np.array(needs), np.array(kept)
