"""How long optimizer steps take at many points: the rules of `pricing.times` over arrays."""

from __future__ import annotations

from collections import defaultdict
from functools import lru_cache, partial
from types import SimpleNamespace
from typing import Any, Final, NamedTuple

import numpy as np

from mla_cost.batch.holding import STATES, Ranks
from mla_cost.batch.layer_times import LayerTimes
from mla_cost.batch.matrices import Floats, Ints
from mla_cost.batch.pipelines import FIGURES
from mla_cost.batch.points import Points, distinct, groups
from mla_cost.batch.tile import Looked, StageWeights, Tile
from mla_cost.inputs.config import DeviceConfig
from mla_cost.inputs.table import TABLE
from mla_cost.language.numbers import maximum, where
from mla_cost.language.schedule import Schedule, ScheduleSize
from mla_cost.mesh.schedule import schedule_of, size_of
from mla_cost.pricing import times
from mla_cost.pricing.times import Chunks, StageTail, StepCall
from mla_cost.pricing.whole_model import parallel_of
from mla_cost.timing import step
from mla_cost.timing.placement import Placement
from mla_cost.weights.held import Holder
from mla_cost.weights.sent import StepCollective

GRADIENTS: Final = FIGURES.index("gradients")
TOGETHER: Final = 1024  # points that a schedule is run over at once
_NO_DTYPES: Final = frozenset(TABLE) - {"dtype", "gradient_dtype"}  # what else times read, a pipeline has alike
_HOLDERS: Final[tuple[Holder, ...]] = ("dense", "expert")


class StepTimes(NamedTuple):
    """Of optimizer steps at many points. Seconds; tokens a second of all devices; shares of their arithmetic."""

    seconds: Floats
    tokens_per_second: Floats
    utilisation: Floats
    idle: Floats
    exposed: Floats


def step_times(tile: Tile, asked: Ints, device: DeviceConfig) -> StepTimes:
    """Those of some of the points alive, by place."""
    points = tile.points.part(asked)
    found = StepTimes(*np.zeros((len(StepTimes._fields), points.size)))
    place = np.full(tile.points.size, -1)
    place[asked] = np.arange(len(asked))
    layers = LayerTimes(tile.table, points, tile.which[asked], device)
    words = points.choices(_NO_DTYPES).codes
    for piped in tile.piped:
        here = place[piped.where]
        here = here[here >= 0]
        for own in groups(distinct(words[here], points["micro_batches"][here]).codes) if len(here) else ():
            mine = here if own is None else here[own]
            timing = _Timing(tile, points, asked, layers, device, mine)
            for column, values in zip(found, timing.found(), strict=True):
                column[mine] = values
    return found


class _Timing:
    """Points of one pipeline and count of micro-batches. mine: their places among those asked for."""

    def __init__(
        self, tile: Tile, points: Points, asked: Ints, layers: LayerTimes, device: DeviceConfig, mine: Ints
    ) -> None:
        self.tile, self.layers, self.mine = tile, layers, mine
        self.settings = points.settings(int(mine[0]))
        self.fields = points.fields(mine)
        self.alive: Ints = asked[mine]  # their places among the points alive
        self.pipe = tile.shared.timed_pipeline(self.settings)
        self.how = times.pricing(device, self.settings, "middle", tile.table.chosen, self.fields)
        self.hop = self._hop()
        different, hops = np.unique(self.hop, return_inverse=True)
        found = distinct(layers.codes[mine], hops)
        self.columns: Ints = layers.codes[mine][found.first]
        self.hops: Floats = different[hops[found.first]]
        self.codes: Ints = found.codes

    def _hop(self) -> Floats:
        """As a plan has it."""
        size = len(self.mine)
        if self.settings.pp == 1 or times.switched(self.settings, "p2p_overlap"):
            return np.zeros(size)
        wide = self.tile.table.element_bytes[self.tile.which[self.alive]]
        found: Floats = np.broadcast_to(times.hop(self.fields, self.tile.shared.model, self.how, wide), size)
        return found

    def found(self) -> StepTimes:
        """The figures."""
        batches = int(self.settings.micro_batches)
        chunks = [self._chunk(counts) for counts in self.pipe.chunks]
        stages = [[chunks[at] for at in own] for own in self.pipe.stages]
        passes = self._passes(stages)[self.codes]
        once, exposed = (each[self.codes] for each in slowest(stages))
        tails = [self._tail(at, own) for at, own in enumerate(stages)]
        kept = sum(times.reduced(tails, self.settings).exposed.values(), np.zeros(len(self.mine)))
        seconds = passes + kept + self._update()
        rates = times.step_rates(self.fields, seconds, self._model_flops(), self.how.peak)
        idle = passes - batches * once
        return StepTimes(seconds, rates.tokens, rates.utilisation, idle, batches * exposed + kept)

    # ---- passes

    @property
    def _places(self) -> Ints:
        """Where the table has the places of the pipeline."""
        return np.array([self.tile.table.places.index(place) for place in self.pipe.places], np.int64)

    def _over_table(self, counts: Ints) -> Ints:
        found = np.zeros(len(self.tile.table.places), np.int64)
        found[self._places] = counts
        return found

    def _chunk(self, counts: Ints) -> tuple[times.TimedPass, times.TimedPass]:
        """The passes of a chunk, at every distinct column."""
        over = self._over_table(counts)
        part = self.layers.chunk(over, self.columns)
        made = over @ self.tile.table.figures[GRADIENTS][:, self.layers.columns[self.columns]]
        more = times.adding_seconds(made, self.settings, self.how)
        return times.passed([part], "forward", self.how), times.passed([part], "backward", self.how, more)

    def _passes(self, stages: list[list[tuple[times.TimedPass, times.TimedPass]]]) -> Floats:
        parallel = parallel_of(self.settings)
        every: list[Chunks] = [stages[at] for at in self.pipe.of]
        size, schedule = len(self.columns), schedule_of(parallel)

        def ends(asked: ScheduleSize) -> Floats:
            alike = step.in_order(schedule, asked).alike
            seconds = np.stack([np.broadcast_to(times.duration(every, *each), size) for each in alike])
            return run_over(schedule, asked, seconds, self.hops)

        found: Floats = step.from_shorter(size_of(parallel), ends)
        return found

    # ---- what follows the passes

    def _tail(self, at: int, chunks: Chunks) -> StageTail:
        links: tuple[dict[str, Any], dict[str, Any]] = (defaultdict(float), defaultdict(float))
        for holder in _HOLDERS:
            for into, own in zip(links, self._links(self.pipe.weights[at], holder), strict=True):
                for axis, seconds in own.items():
                    into[axis] = into[axis] + seconds
        forward, backward = (np.broadcast_to(each, len(self.columns)) for each in times.computing(chunks))
        return StageTail(links, (forward[self.codes], backward[self.codes]))

    def _ranks(self, holder: Holder) -> tuple[tuple[Ranks, ...], Ints]:
        groups = self.tile.groups
        if holder == "dense":
            return groups.dense, groups.dense_codes[self.alive]
        return groups.expert, groups.expert_codes[self.alive]

    def _links(self, weights: StageWeights, holder: Holder) -> tuple[dict[str, Floats], dict[str, Floats]]:
        """Exchanges of the step, by axis, worked out once for all points whose ranks and places are alike."""
        ranks, codes = self._ranks(holder)
        calls = {code: self.tile.shared.holding.calls(weights, ranks[code], holder) for code in np.unique(codes)}
        axes = dict.fromkeys(call.axis for own in calls.values() for call in own)
        strides = {axis: np.broadcast_to(self.how.by.lie.strides[axis], len(codes)) for axis in axes}
        each = distinct(codes, *strides.values())
        size = len(each.first)
        found: tuple[dict[str, Floats], dict[str, Floats]] = ({}, {})
        for number, at in enumerate(each.first):
            lie = Placement({axis: int(stride[at]) for axis, stride in strides.items()}, self.how.by.lie.domain)
            for into, amounts in zip(found, self._step_links(calls[codes[at]], lie), strict=True):
                for axis, seconds in amounts.items():
                    into.setdefault(axis, np.zeros(size))[number] = seconds
        one, two = ({axis: seconds[each.codes] for axis, seconds in own.items()} for own in found)
        return one, two

    def _step_links(
        self, calls: tuple[StepCollective, ...], lie: Placement
    ) -> tuple[dict[str, float], dict[str, float]]:
        """Seconds of calls, looked up by all that decides them beside the device and what is stated of time."""
        key = (calls, lie.domain, *lie.strides.items())
        known = self.layers.step_links
        if key not in known:
            how = self.how._replace(by=self.how.by._replace(lie=lie))
            own = [StepCall(it.kind, it.axis, it.group_size, it.calls, it.wire_bytes) for it in calls]
            known[key] = times.step_links(own, how)
        return known[key]

    def _update(self) -> Any:
        """The update of the stage that has most to update."""
        holding = self.tile.shared.holding
        asks = {"dense": holding.dense, "expert": holding.expert}
        most: Any = 0.0
        for weights in self.pipe.weights:
            rows: Any = 0.0
            for holder in _HOLDERS:
                ranks, codes = self._ranks(holder)
                rows = rows + Looked(codes).rows(partial(asks[holder], weights), ranks)
            held = SimpleNamespace(**dict(zip(STATES, rows, strict=False)))
            most = maximum(most, times.update_seconds(held, self.how))
        return most

    def _model_flops(self) -> Any:
        """Of all ranks in one step."""
        counts = sum(self._over_table(self.pipe.chunks[at]) for stage in self.pipe.of for at in self.pipe.stages[stage])
        once = counts @ self.tile.table.flops[0][:, self.tile.which[self.alive]]
        return once * self.settings.micro_batches * (self.fields.tp * self.fields.sp * self.fields.dp)


def slowest(stages: list[list[tuple[times.TimedPass, times.TimedPass]]]) -> tuple[Any, Any]:
    """Of the stage that works most, of equal ones the first: a micro-batch, and what of it is exposed. Seconds."""
    once, exposed = times.once(stages[0]), _exposed(stages[0])
    for stage in stages[1:]:
        more = times.once(stage)
        longer = more > once
        once, exposed = where(longer, more, once), where(longer, _exposed(stage), exposed)
    return once, exposed


def _exposed(chunks: Chunks) -> Any:
    zero = 0.0 * times.once(chunks)
    return sum((sum(way.exposed.values()) for pair in chunks for way in pair), zero)


# ---- schedules


class Levels(NamedTuple):
    """The passes of a schedule, those that wait for none of each other together, and the last one of every stage."""

    waiting: tuple[step.Waiting, ...]
    last: Ints
    passes: int


@lru_cache(maxsize=64)
def levels(schedule: Schedule, size: ScheduleSize) -> Levels:
    """The levels of a schedule."""
    order = step.in_order(schedule, size)
    level = [0] * (len(order.waiting) + 1)  # at NOTHING: 0
    together: dict[tuple[int, int], list[step.Waiting]] = {}
    last: dict[int, int] = {}
    for (stage, _), each in zip(order.passes, order.waiting, strict=True):
        level[each.place] = 1 + max(level[at] for at in (each.before, *each.others))
        together.setdefault((level[each.place], len(each.others)), []).append(each)
        last[stage] = each.place
    ranked = [together[key] for key in sorted(together)]
    moved = np.zeros(len(order.waiting) + 1, np.int64)  # passes of a level side by side
    moved[[each.place for own in ranked for each in own]] = np.arange(len(order.waiting))
    moved[step.NOTHING] = step.NOTHING
    return Levels(tuple(_as_arrays(own, moved) for own in ranked), moved[[*last.values()]], len(order.waiting))


def _as_arrays(each: list[step.Waiting], moved: Ints) -> step.Waiting:
    place, before, others, alike = zip(*each, strict=True)
    columns = tuple(moved[list(column)] for column in zip(*others, strict=True))
    first = int(moved[place[0]])
    return step.Waiting(slice(first, first + len(place)), moved[list(before)], columns, np.array(alike))


def run_over(schedule: Schedule, size: ScheduleSize, seconds: Floats, hops: Floats) -> Floats:
    """When the last pass ends, at every point. seconds: a row for each of `Order.alike`; hops: to the next stage."""
    waiting, last, passes = levels(schedule, size)
    found: Floats = np.empty(seconds.shape[1])
    for start in range(0, len(found), TOGETHER):
        here = slice(start, start + TOGETHER)
        ended = np.zeros((passes + 1, len(found[here])))
        step.run(waiting, ended, seconds[:, here], hops[here], np.maximum)
        found[here] = ended[last].max(axis=0)
    return found
