"""Prices columns of points: legal ones to layers, layers to stages, the worst stage to a row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property, lru_cache
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mla_cost import defaults, fit
from mla_cost.arrays.codes import ILLEGAL, KERNEL_NAMES, NO_PROGRAM, TOO_LARGE, UNTRAINED
from mla_cost.arrays.matrices import Floats, Ints
from mla_cost.composing import scalar, verdicts
from mla_cost.composing.busiest import Busiest, wire_of
from mla_cost.composing.composed import AXES, Composed
from mla_cost.composing.holding import STATES, Holding, groups, sums
from mla_cost.composing.layers import Layers
from mla_cost.composing.legality import refused, schedule_of, scheduled
from mla_cost.composing.pipelines import Names, Pipeline, Stage, pipeline
from mla_cost.composing.points import NOT_OF_LAYERS, NOT_OF_PIPELINES, Choices, Points, distinct
from mla_cost.composing.table import Question, Table
from mla_cost.config import DeviceConfig, ModelConfig
from mla_cost.errors import InputError
from mla_cost.evaluate import FENCE
from mla_cost.parallel import Parallel
from mla_cost.parameters import refusal
from mla_cost.resolve import Illegal, layer_rows, named
from mla_cost.settings import PlanSettings
from mla_cost.stage import Place

TILE: Final = 1 << 14  # points at once: what they need should stay near a core
_TOO_LARGE: Final = "a byte count reaches 2^53, below which bytes are exact; make the plan smaller"
_SMALLEST: Final = {"tp": 1, "sp": 1, "seq_len": 2}


def price(
    model: ModelConfig,
    device: DeviceConfig | None,
    form: str,
    settings: PlanSettings,
    columns: Mapping[str, Sequence[int | str] | NDArray[Any]],
    *,
    busiest: bool = False,
) -> Composed:
    """Every point of columns of one length: fields of a plan that vary; all others are as the settings have them.

    busiest: work out `busiest_wire_bytes` and `busiest_flops` too.

    Each number is what `mla_cost.plan` at the model scope prints, to the byte: `Composed.check` compares some.

    Raises:
        InputError: a field or a name that does not exist, columns of several lengths.

    """
    points = Points(settings, columns)
    pricer = Pricer(model, device, form, busiest=busiest)
    found = Composed(points.size, KERNEL_NAMES, pricer.told(points), pricer.expected(points))
    for start in range(0, points.size, TILE):
        pricer.fill(points.part(slice(start, start + TILE)), start, found)
    return found


class _Shared:
    """What all questions about one model look up."""

    def __init__(self, model: ModelConfig) -> None:
        self.holding = Holding(model)
        self.layers = Layers()
        self.pipelines: dict[tuple[str, Parallel, int | None], Pipeline] = {}


@lru_cache(maxsize=16)
def _shared(facts: str) -> _Shared:
    return _Shared(ModelConfig.model_validate_json(facts))


class Pricer:
    """Prices points of one form of a model on one device."""

    def __init__(self, model: ModelConfig, device: DeviceConfig | None, form: str, *, busiest: bool = False) -> None:
        self.model, self.device, self.form, self.busiest = model, device, form, busiest
        self._shared = _shared(model.model_dump_json())
        self._kernels: dict[str, PlanSettings] = {}
        self._names: dict[str, Names] = {}

    def names(self, profile: str) -> Names:
        """The layers of the model.

        Raises:
            Illegal: a kind of layer that is not priced.

        """
        if profile not in self._names:
            self._names[profile] = Names(self.model, self.form, profile)
        return self._names[profile]

    @cached_property
    def priced(self) -> bool:
        """Whether all layers of the model are priced."""
        if refusal(self.model) is not None:
            return False
        try:
            self.names(defaults.PROFILE)
        except Illegal:
            return False
        return True

    # ---- refusals and the check

    def told(self, points: Points) -> Any:
        """A function from a point and its code to the words of a plan."""

        def reason(at: int, code: int) -> str:
            if code == TOO_LARGE:
                return _TOO_LARGE
            return scalar.reason(self.model, self.device, self.form, points.settings(at), self.with_kernel)

        return reason

    def expected(self, points: Points) -> Any:
        """A function from a point to its row by `plan`."""
        return lambda at: scalar.row(self.model, self.device, self.form, points.settings(at))

    def with_kernel(self, settings: PlanSettings) -> PlanSettings:
        """The settings with a kernel in place of `auto`, as a plan chooses it; head widths alone decide.

        Raises:
            InputError: settings that name what does not exist.

        """
        if settings.kernel != fit.AUTO:
            return settings
        small = settings.model_copy(update=_SMALLEST)
        key = small.model_dump_json()
        if key not in self._kernels:
            self._kernels[key], _ = fit.with_kernel(self.model, self.device, self.form, small)
        chosen = self._kernels[key]
        return settings.model_copy(update={"kernel": chosen.kernel, "value_padding": chosen.value_padding})

    def _chosen(self, settings: PlanSettings) -> PlanSettings:
        """As `with_kernel`; settings that are bad input stay as they are and are refused with their layers."""
        try:
            return self.with_kernel(settings)
        except InputError:
            return settings

    # ---- numbers

    def fill(self, points: Points, start: int, found: Composed) -> None:
        """Price points and put them where they belong, from `start`."""
        here = slice(start, start + points.size)
        choices = points.choices(NOT_OF_LAYERS)
        chosen = Choices(tuple(map(self._chosen, choices.settings)), choices.codes)
        code = refused(self.model, points) if self.priced else np.full(points.size, NO_PROGRAM, np.int8)
        alive = np.flatnonzero(code == 0)
        if len(alive):
            some = points.part(alive)
            tile = _Tile(self, some, Choices(chosen.settings, chosen.codes[alive]))
            tile.put(found, start + alive)
            code[alive] = tile.code
        illegal = (code != 0) & (code != UNTRAINED)
        found.reason[here] = code
        found.status[here][illegal] = ILLEGAL
        found.kernel[here] = np.where(illegal, _kernels(choices), _kernels(chosen))


def _kernels(choices: Choices) -> Any:
    """The kernel of every point, as a place in KERNEL_NAMES.

    Raises:
        InputError: an unknown name.

    """
    place = {name: at for at, name in enumerate(KERNEL_NAMES)}
    each = [named("kernel", settings.kernel, place) for settings in choices.settings]
    return np.array(each, np.int16)[choices.codes]


class _Worst(NamedTuple):
    """The worst stage of every point: its place among the stages, bytes of the peak and of its parts.

    kept, active: of the schedule at its worst moment. step: made by the optimizer step, alive when they are not.
    """

    stage: Ints
    peak: Floats
    kept: Floats
    active: Floats
    step: Floats
    standing: Floats
    states: Floats  # a row for each of holding.STATES


class _Tile:
    """Points that may be priced, as far as no layer refuses them."""

    def __init__(self, pricer: Pricer, points: Points, choices: Choices) -> None:
        self.pricer, self.shared = pricer, pricer._shared
        piped = self._pipelines(points)
        places: dict[str, tuple[Place, ...]] = {}
        for profile, pipe, _ in piped:
            places[profile] = tuple(dict.fromkeys((*places.get(profile, ()), *pipe.places)))
        question = Question(pricer.model, pricer.device, pricer.form, places)
        self.table = table = Table(question, self.shared.layers, points, choices)
        self.code: NDArray[np.int8] = table.refused[table.which]
        for _, pipe, where in piped:
            exact = table.exact[self._columns(pipe)][:, table.which[where]].all(axis=0)
            self.code[where[(self.code[where] == 0) & ~exact]] = TOO_LARGE
        self.alive: Ints = np.flatnonzero(self.code == 0)
        place = np.full(points.size, -1)
        place[self.alive] = np.arange(len(self.alive))
        self.piped = [(pipe, place[where][place[where] >= 0]) for _, pipe, where in piped]
        self.points = points.part(self.alive)
        self.which: Ints = table.which[self.alive]

    def _columns(self, pipe: Pipeline) -> Ints:
        """Where the table has the places of a pipeline."""
        return np.array([self.table.places.index(place) for place in pipe.places], np.int64)

    def _pipelines(self, points: Points) -> list[tuple[str, Pipeline, Ints]]:
        """Each pipeline with its profile and the points that have it."""
        chosen = points.choices(NOT_OF_PIPELINES)
        found = distinct(chosen.codes, points["pp"], points["virtual_stages"], scheduled(points))
        order = np.argsort(found.codes, kind="stable")
        cuts = np.flatnonzero(np.diff(found.codes[order])) + 1
        pipes: list[tuple[str, Pipeline, Ints]] = []
        for where in np.split(order, cuts):
            first = int(where[0])
            settings = points.with_numbers(chosen.settings[chosen.codes[first]], first)
            pipes.append((settings.profile, self._pipeline(settings), where))
        return pipes

    def _pipeline(self, settings: PlanSettings) -> Pipeline:
        alone = schedule_of(settings)
        if alone.chunks == 1:
            alone = alone._replace(micro_batches=min(alone.micro_batches, alone.pp))
        known, key = self.shared.pipelines, (settings.profile, alone, settings.stage)
        if key not in known:
            known[key] = pipeline(self.pricer.names(settings.profile), alone, settings.stage)
        return known[key]

    def put(self, found: Composed, where: Ints) -> None:
        """Write the numbers of what is alive. where: the rows of all points of the tile."""
        if not len(self.alive):
            return
        self.stages: list[Stage] = []
        self.groups = groups(self.points)
        self.busiest = self._busiest() if self.pricer.busiest else None
        worst = self._worst()
        sent = self._sent(worst)
        exact = (worst.peak < FENCE) & (sum(sent["payload", "all"]) < FENCE) & (sum(sent["wire", "all"]) < FENCE)
        self.code[self.alive[~exact]] = TOO_LARGE
        self._write(found, where[self.alive], worst, sent, exact)

    # ---- the worst stage

    def _worst(self) -> _Worst:
        size = self.points.size
        kept, active, step, standing, *states = np.zeros((4 + len(STATES), size))
        worst = _Worst(np.zeros(size, np.int64), np.full(size, -1.0), kept, active, step, standing, np.array(states))
        for pipe, where in self.piped:
            if len(where):
                self._take(pipe, where, worst)
        return worst

    def _take(self, pipe: Pipeline, where: Ints, worst: _Worst) -> None:
        """The points of one pipeline."""
        columns = self._columns(pipe)
        figures, places = pipe.read
        moments = self.table.figures[figures[:, None], columns[places][:, None], self.which[where]]
        dense = _Looked(self.groups.dense_codes[where])
        expert = _Looked(self.groups.expert_codes[where])
        for stage in (self._over_table(stage, columns) for stage in pipe.stages):
            held = dense.rows(lambda ranks, stage=stage: self.shared.holding.dense(stage, ranks), self.groups.dense)
            held += expert.rows(lambda ranks, stage=stage: self.shared.holding.expert(stage, ranks), self.groups.expert)
            self._compare(stage, where, moments, held[:-1], held[-1], worst)
            if self.busiest is not None:
                step = dense.rows(wire_of(self.shared.holding.dense_sent, stage), self.groups.dense)
                step = step + expert.rows(wire_of(self.shared.holding.expert_sent, stage), self.groups.expert)
                self.busiest.take(stage, where, step)

    def _over_table(self, stage: Stage, columns: Ints) -> Stage:
        """A stage with its layers counted by the table's places."""
        counts = np.zeros(len(self.table.places), np.int64)
        counts[columns] = stage.counts
        return stage._replace(counts=tuple(counts.tolist()))

    def _compare(self, stage: Stage, where: Ints, moments: Floats, held: Floats, step: Floats, worst: _Worst) -> None:
        """Put a stage where it is worse than those before."""
        needs = stage.needs @ moments
        moment = needs.argmax(axis=0)
        active = needs[moment, np.arange(len(where))]
        present = frozenset(at for at, count in enumerate(stage.counts) if count)
        standing = self.table.standing(present)[self.which[where]]
        peak = np.maximum(active, step) + standing + held.sum(axis=0)
        worse = peak > worst.peak[where]
        at = where[worse]
        worst.peak[at], worst.active[at], worst.standing[at] = peak[worse], active[worse], standing[worse]
        worst.states[:, at], worst.step[at] = held[:, worse], step[worse]
        worst.kept[at] = np.einsum("pn,np->p", stage.kept[moment[worse]], moments[:, worse])
        worst.stage[at] = len(self.stages)
        self.stages.append(stage)

    # ---- one optimizer step

    def _sent(self, worst: _Worst) -> dict[tuple[str, str], list[Floats]]:
        """Bytes by amount and axis, by amount and phase, and by amount alone (`all`): arrays to be summed."""
        found: dict[tuple[str, str], list[Floats]] = {(amount, "all"): [] for amount in ("payload", "wire")}

        def add(amount: str, axis: str, phase: str, column: Floats) -> None:
            for key in ((amount, axis), (amount, phase), (amount, "all")):
                found.setdefault(key, []).append(column)

        times = self.points["micro_batches"].astype(np.float64)
        counts = np.array([stage.counts for stage in self.stages], np.float64)[worst.stage].T
        for row, each in self.table.sent.items():
            add(row.amount, row.axis, row.phase, times * (counts * each[:, self.which]).sum(axis=0))
        self._passed(worst, times, add)
        self._step(worst, add)
        return found

    def _passed(self, worst: _Worst, times: Floats, add: Any) -> None:
        """Hidden states to the next chunk and their gradients back, as `whole_model` counts them."""
        once = self._hidden_states()
        passes = np.array([stage.passes for stage in self.stages])[worst.stage].T
        for phase, count in zip(("forward", "backward"), passes, strict=True):
            for amount in ("payload", "wire"):
                add(amount, "pp", phase, times * once * count)

    def _hidden_states(self) -> Floats:
        """Bytes that one chunk hands to the next of another stage, for one micro-batch."""
        fields = self.points.fields()
        hidden = layer_rows(fields) * self.pricer.model.dims.hidden
        found: Floats = self.table.element_bytes[self.which] * hidden * (fields.pp > 1)
        return found

    def _busiest(self) -> Busiest:
        layers: dict[int, Floats] = {}
        for row, each in self.table.sent.items():
            if row.amount == "wire":
                axis = AXES.index(row.axis)
                layers[axis] = layers.get(axis, 0.0) + each[:, self.which]
        return Busiest(
            layers=layers,
            flops=self.table.flops[1][:, self.which],
            passed=self._hidden_states(),
            times=self.points["micro_batches"].astype(np.float64),
        )

    def _step(self, worst: _Worst, add: Any) -> None:
        """What keeps weights equal."""
        holding, own = self.shared.holding, self.groups
        for ranks, codes, ask in (
            (own.dense, own.dense_codes, holding.dense_sent),
            (own.expert, own.expert_codes, holding.expert_sent),
        ):
            each = distinct(worst.stage, codes)
            looked = [sums(ask(self.stages[worst.stage[at]], ranks[codes[at]])) for at in each.first]
            for amount, axis in dict.fromkeys(key for found in looked for key in found):
                column = np.array([float(found.get((amount, axis), 0)) for found in looked])[each.codes]
                add(amount, axis, "step", column)

    # ---- rows

    def _write(
        self,
        found: Composed,
        where: Ints,
        worst: _Worst,
        sent: dict[tuple[str, str], list[Floats]],
        exact: NDArray[np.bool_],
    ) -> None:
        rows = where[exact]

        def put(column: NDArray[Any], values: Any) -> None:
            column[rows] = values[exact]

        def total(*key: str) -> Any:
            return sum(sent.get((key[0], key[1]), []), start=np.zeros(len(where)))

        weights, gradients, optimizer, _ = worst.states
        put(found.peak_bytes, worst.peak)
        put(found.state_bytes, worst.states.sum(axis=0))
        put(found.weight_bytes, weights)
        put(found.gradient_bytes, gradients)
        put(found.optimizer_bytes, optimizer)
        put(found.standing_bytes, worst.standing)
        put(found.saved_bytes, worst.kept)
        put(found.active_bytes, worst.active)
        after = worst.step > worst.active  # the optimizer step holds more than the schedule did
        put(found.kept_bytes, np.where(after, 0, worst.kept))
        put(found.working_bytes, np.where(after, worst.step, worst.active - worst.kept))
        put(found.wire_bytes, total("wire", "all"))
        put(found.forward_payload_bytes, total("payload", "forward"))
        put(found.backward_payload_bytes, total("payload", "backward"))
        put(found.forward_wire_bytes, total("wire", "forward"))
        put(found.backward_wire_bytes, total("wire", "backward"))
        for axis in AXES:
            put(found.wire_by_axis[axis], total("wire", axis))
        if self.busiest is not None:
            put(found.busiest_wire_bytes, self.busiest.wire)
            put(found.busiest_flops, self.busiest.executed)
            for axis, column in zip(AXES, self.busiest.by_axis, strict=True):
                put(found.busiest_by_axis[axis], column)
        put(found.worst_stage, np.array([stage.stage for stage in self.stages])[worst.stage])
        for column, flops in zip((found.flops_model, found.flops_executed), self._flops(worst), strict=True):
            put(column, flops)
        self._judge(found, where, worst, exact)

    def _flops(self, worst: _Worst) -> Floats:
        counts = np.array([stage.counts for stage in self.stages], np.float64)[worst.stage].T
        found: Floats = (counts * self.table.flops[:, :, self.which]).sum(axis=1) * self.points["micro_batches"]
        return found

    def _judge(self, found: Composed, where: Ints, worst: _Worst, exact: NDArray[np.bool_]) -> None:
        device, rows = self.pricer.device, where[exact]
        required = worst.peak[exact].astype(np.int64) + verdicts.other_memory(self.points)[exact]
        free = verdicts.usable(self.pricer.model, self.points, device)[exact]
        trained = self.table.trained[self.which][exact]
        found.required_bytes[rows], found.usable_bytes[rows] = required, free
        if device is not None:
            found.headroom_bytes[rows] = free - required
        found.status[rows] = verdicts.statuses(free - required, free, trained, device)
        self.code[self.alive[exact]] = np.where(trained, 0, UNTRAINED)


class _Looked:
    """The rows of points, each distinct one looked up once."""

    def __init__(self, codes: Ints) -> None:
        self.different, self.codes = np.unique(codes, return_inverse=True)

    def rows(self, ask: Any, ranks: Sequence[Any]) -> Floats:
        """The columns of an answer for the ranks that there are, one for each point."""
        found: Floats = ask([ranks[at] for at in self.different])
        return found[self.codes].T
