"""Points that may be priced at once: the layers they have, and their worst stage."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from functools import cached_property, partial
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mla_cost.batch.codes import TOO_LARGE
from mla_cost.batch.holding import STATES, Group, Holding, groups
from mla_cost.batch.legality import pipeline_of, scheduled
from mla_cost.batch.matrices import Floats, Ints
from mla_cost.batch.pipelines import FIGURES, Names, PipelineRows, StageRows, pipeline
from mla_cost.batch.points import ALIKE, NOT_OF_PIPELINES, Choices, Points, distinct
from mla_cost.batch.programs import Programs
from mla_cost.batch.table import Table, TableQuestion
from mla_cost.inputs.config import DeviceConfig, ModelConfig
from mla_cost.inputs.settings import PlanSettings
from mla_cost.mesh.degrees import Parallel
from mla_cost.mesh.placement import Chunk
from mla_cost.mesh.schedule import enough
from mla_cost.pricing.stage import Place
from mla_cost.pricing.step_traffic import hidden_states
from mla_cost.pricing.whole_model import state_settings
from mla_cost.pricing.worst_stage import in_flight_and_working, stage_peak, worse

KEPT: Final = FIGURES.index("kept")


class Shared:
    """What all questions about one model look up."""

    def __init__(self, model: ModelConfig) -> None:
        self.model = model
        self.holding = Holding(model)
        self.programs = Programs()
        self._names: dict[tuple[str, int | None], Names] = {}
        self._pipelines: dict[Hashable, PipelineRows] = {}
        self._timed: dict[Hashable, TimedPipeline] = {}

    def names(self, profile: str, remat_layers: int | None = None) -> Names:
        """The layers of the model.

        Raises:
            Illegal: a kind of layer that is not priced.

        """
        key = (profile, remat_layers)
        if key not in self._names:
            self._names[key] = Names(self.model, *key)
        return self._names[key]

    def pipeline(self, settings: PlanSettings) -> PipelineRows:
        """The pipeline of a plan; it is the same for all micro-batches that its schedule does not tell apart."""
        alone = enough(pipeline_of(settings))
        gathering = state_settings(settings).gathering
        key = (settings.profile, settings.remat_layers, alone, settings.stage, gathering)
        if key not in self._pipelines:
            names = self.names(settings.profile, settings.remat_layers)
            self._pipelines[key] = pipeline(names, alone, settings.stage, gathering)
        return self._pipelines[key]

    def timed_pipeline(self, settings: PlanSettings) -> TimedPipeline:
        """The pipeline of a plan as far as its time goes; the same for all micro-batches."""
        parallel = pipeline_of(settings)._replace(num_micro_batches=1)
        key = (settings.profile, settings.remat_layers, parallel)
        if key not in self._timed:
            self._timed[key] = timed_pipeline(self.names(settings.profile, settings.remat_layers), parallel)
        return self._timed[key]


class TimedPipeline(NamedTuple):
    """A pipeline as far as its time goes: every chunk, and every stage, that differs from those before.

    chunks: layers at each of `places`. stages: the chunks of each stage that differs; of: which of them a stage is.
    weights: what each of them holds.
    """

    places: tuple[Place, ...]
    chunks: tuple[Ints, ...]
    stages: tuple[tuple[int, ...], ...]
    of: tuple[int, ...]
    weights: tuple[StageWeights, ...]


class StageWeights(NamedTuple):
    """As `holding.HasWeights`."""

    kinds: tuple[tuple[int, int], ...]
    ends: tuple[Chunk, ...]


def timed_pipeline(names: Names, parallel: Parallel) -> TimedPipeline:
    """The pipeline of degrees that are legal."""
    laid_out = names.stages(parallel)
    places = tuple(dict.fromkeys(place for chunks in laid_out for chunk in chunks for place in names.of(chunk)))
    chunks: dict[tuple[Place, ...], int] = {}
    stages: dict[tuple[tuple[int, ...], StageWeights], int] = {}
    of = []
    for stage in laid_out:
        own = tuple(chunks.setdefault(names.of(chunk), len(chunks)) for chunk in stage)
        weights = StageWeights(names.kinds(stage), tuple(chunk._replace(first=0, num_layers=0) for chunk in stage))
        of.append(stages.setdefault((own, weights), len(stages)))
    counts = (Counter(chunk) for chunk in chunks)
    return TimedPipeline(
        places,
        tuple(np.array([each[place] for place in places], np.int64) for each in counts),
        tuple(own for own, _ in stages),
        tuple(of),
        tuple(weights for _, weights in stages),
    )


class Worst(NamedTuple):
    """The worst stage of every point: its place among the stages, bytes of the peak and of its parts.

    saved: what one micro-batch keeps. saved_in_flight, active: of the schedule at its peak event. step: made by the
    optimizer step, alive when they are not.
    """

    stage: Ints
    peak: Floats
    saved: Floats
    saved_in_flight: Floats
    active: Floats
    step: Floats
    persistent: Floats
    states: Floats  # a row for each of holding.STATES

    @property
    def weights(self) -> Floats:
        """Bytes of weights."""
        return self._state("weight_bytes")

    @property
    def gradients(self) -> Floats:
        """Bytes of their gradients."""
        return self._state("gradient_bytes")

    @property
    def optimizer(self) -> Floats:
        """Bytes of optimizer states."""
        return self._state("optimizer_bytes")

    @property
    def in_flight(self) -> Floats:
        """What is kept for other micro-batches at the allocated peak: nothing where that is the optimizer step."""
        found: Floats = in_flight_and_working(self.saved_in_flight, self.active, self.step)[0]
        return found

    @property
    def working(self) -> Floats:
        """What is alive beside it: of the micro-batch at work, or made by the optimizer step."""
        found: Floats = in_flight_and_working(self.saved_in_flight, self.active, self.step)[1]
        return found

    def _state(self, name: str) -> Floats:
        found: Floats = self.states[STATES.index(name)]
        return found


class Looked:
    """The rows of points, each distinct one looked up once."""

    def __init__(self, codes: Ints) -> None:
        self.different, self.codes = np.unique(codes, return_inverse=True)

    def rows(self, ask: Callable[[Sequence[Any]], Floats], ranks: Sequence[Any]) -> Floats:
        """The columns of an answer for the ranks that there are, one for each point."""
        return ask([ranks[at] for at in self.different])[self.codes].T


class Piped(NamedTuple):
    """A pipeline and the points alive that have it: columns of its places in the table, stages over the whole table,
    and the ranks of either holder.
    """

    pipe: PipelineRows
    where: Ints
    columns: Ints
    stages: tuple[StageRows, ...]
    senders: tuple[StageRows, ...]
    dense: Looked
    expert: Looked


class Tile:
    """Points, none of which a plan refuses before it prices layers.

    code: a reason for each, 0 where no layer refuses it. alive: those; points, which, groups: theirs alone.
    """

    def __init__(
        self, shared: Shared, device: DeviceConfig | None, form: str, points: Points, choices: Choices
    ) -> None:
        self.shared = shared
        piped = self._pipelines(points)
        places: dict[str, tuple[Place, ...]] = {}
        for profile, pipe, _ in piped:
            places[profile] = tuple(dict.fromkeys((*places.get(profile, ()), *pipe.places)))
        self.table = table = Table(TableQuestion(shared.model, device, form, places), shared.programs, points, choices)
        self.code: NDArray[np.int8] = table.refused[table.which]
        for _, pipe, where in piped:
            exact = table.exact[self._columns(pipe)][:, table.which[where]].all(axis=0)
            self.code[where[(self.code[where] == 0) & ~exact]] = TOO_LARGE
        self.alive: Ints = np.flatnonzero(self.code == 0)
        place = np.full(points.size, -1)
        place[self.alive] = np.arange(len(self.alive))
        self.points = points.part(self.alive)
        self.which: Ints = table.which[self.alive]
        self.piped = [self._piped(pipe, place[where][place[where] >= 0]) for _, pipe, where in piped]
        self.piped = [each for each in self.piped if len(each.where)]
        self.stages: list[StageRows] = []

    def _piped(self, pipe: PipelineRows, where: Ints) -> Piped:
        columns = self._columns(pipe)
        stages, senders = (
            tuple(self._over_table(stage, columns) for stage in each) for each in (pipe.stages, pipe.senders)
        )
        return Piped(
            pipe,
            where,
            columns,
            stages,
            senders,
            Looked(self.groups.dense_codes[where]),
            Looked(self.groups.expert_codes[where]),
        )

    def _columns(self, pipe: PipelineRows) -> Ints:
        """Where the table has the places of a pipeline."""
        return np.array([self.table.places.index(place) for place in pipe.places], np.int64)

    def _pipelines(self, points: Points) -> list[tuple[str, PipelineRows, Ints]]:
        """Each pipeline with its profile and the points that have it."""
        chosen = points.choices(NOT_OF_PIPELINES, ALIKE)
        found = distinct(chosen.codes, points["pp"], points["virtual_stages"], scheduled(points))
        order = np.argsort(found.codes, kind="stable")
        cuts = np.flatnonzero(np.diff(found.codes[order])) + 1
        pipes: list[tuple[str, PipelineRows, Ints]] = []
        for where in np.split(order, cuts):
            first = int(where[0])
            settings = points.with_numbers(chosen.settings[chosen.codes[first]], first)
            pipes.append((settings.profile, self.shared.pipeline(settings), where))
        return pipes

    @cached_property
    def groups(self) -> Group:
        """The ranks of those alive."""
        return groups(self.points, self.table.question.form)

    @cached_property
    def times(self) -> Floats:
        """Micro-batches of one optimizer step."""
        return self.points["micro_batches"].astype(np.float64)

    @cached_property
    def hidden_states(self) -> Floats:
        """Bytes that one chunk hands to the next of another stage, for one micro-batch."""
        once = self.table.element_bytes[self.which]
        found: Floats = hidden_states(self.points.fields(), self.shared.model.dims.hidden, once)
        return found

    # ---- the worst stage

    def worst(self) -> Worst:
        """The worst stage of every point alive."""
        size = self.points.size
        saved, kept, active, step, persistent, *states = np.zeros((5 + len(STATES), size))
        peak, stage = np.full(size, -1.0), np.zeros(size, np.int64)
        worst = Worst(stage, peak, saved, kept, active, step, persistent, np.array(states))
        for piped in self.piped:
            self._take(piped, worst)
        return worst

    def _take(self, piped: Piped, worst: Worst) -> None:
        """The points of one pipeline."""
        where = piped.where
        moments = self._figures(piped)
        for stage in piped.stages:
            held = piped.dense.rows(partial(self.shared.holding.dense, stage), self.groups.dense)
            held += piped.expert.rows(partial(self.shared.holding.expert, stage), self.groups.expert)
            self._compare(stage, where, moments, held[:-1], held[-1], worst)

    def _figures(self, piped: Piped) -> Floats:
        """What the stages of a pipeline add up, a row each: figures of layers, and of units that are gathered."""
        (figures, places), where = piped.pipe.read, piped.where
        of_layers = figures < len(FIGURES)
        found: Floats = np.zeros((len(figures), len(where)))
        chosen, columns = figures[of_layers], piped.columns[places[of_layers]]
        found[of_layers] = self.table.figures[chosen[:, None], columns[:, None], self.which[where]]
        holding = self.shared.holding
        for place in np.unique(places[~of_layers]):
            layer, mine = piped.pipe.places[place].layer, ~of_layers & (places == place)
            unit = piped.dense.rows(partial(holding.dense_unit, layer), self.groups.dense)
            unit = unit + piped.expert.rows(partial(holding.expert_unit, layer), self.groups.expert)
            found[mine] = unit[figures[mine] - len(FIGURES)]
        return found

    def _over_table(self, stage: StageRows, columns: Ints) -> StageRows:
        """A stage with its layers counted by the table's places."""
        counts = np.zeros(len(self.table.places), np.int64)
        counts[columns] = stage.counts
        return stage._replace(counts=tuple(counts.tolist()))

    def _compare(
        self, stage: StageRows, where: Ints, moments: Floats, held: Floats, step: Floats, worst: Worst
    ) -> None:
        """Put a stage where it is worse than those before."""
        needs = stage.needs @ moments
        moment = needs.argmax(axis=0)
        active = needs[moment, np.arange(len(where))]
        persistent = self.table.persistent(stage.counts)[self.which[where]]
        peak = stage_peak(held.sum(axis=0), persistent, active, step)
        mine = worse(peak, worst.peak[where])
        at = where[mine]
        worst.peak[at], worst.active[at], worst.persistent[at] = peak[mine], active[mine], persistent[mine]
        worst.states[:, at], worst.step[at] = held[:, mine], step[mine]
        worst.saved_in_flight[at] = np.einsum("pn,np->p", stage.saved_in_flight[moment[mine]], moments[:, mine])
        worst.saved[at] = np.array(stage.counts) @ self.table.figures[KEPT][:, self.which[at]]
        worst.stage[at] = len(self.stages)
        self.stages.append(stage)
