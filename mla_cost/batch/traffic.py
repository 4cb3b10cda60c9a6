"""What ranks send and run in one optimizer step at many points: of the worst stage, and the most of all stages."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from mla_cost.batch.composed import AXES
from mla_cost.batch.holding import Ranks
from mla_cost.batch.matrices import Floats, Ints
from mla_cost.batch.pipelines import StageRows
from mla_cost.batch.points import distinct
from mla_cost.batch.tile import Piped, Tile, Worst
from mla_cost.pricing.step_traffic import Most, Sent, Totals, between_stages, maximum_over_stages


class Work(NamedTuple):
    """What a rank of the worst stage of every point alive sends and runs. flops: model and executed."""

    sent: Totals
    flops: Floats


# ---- of the worst stage


def worst_stage(tile: Tile, worst: Worst) -> Work:
    """The work of the worst stage of every point alive."""
    counts = np.array([stage.counts for stage in tile.stages], np.float64)[worst.stage].T
    passed = np.array([stage.passes for stage in tile.stages])[worst.stage].T
    calls = (
        *_layers(tile, counts),
        *between_stages(passed, tile.times, tile.hidden_states),
        *_step(tile, worst.stage),
    )
    flops: Floats = (counts * tile.table.flops[:, :, tile.which]).sum(axis=1) * tile.times
    return Work(Totals(calls, np.zeros(tile.points.size)), flops)


def _layers(tile: Tile, counts: Floats) -> Iterator[Sent]:
    """What layers send; counts: of each place (rows) at each point."""
    for (axis, phase), (payload, wire) in tile.table.sent.items():
        yield Sent(axis, phase, *(tile.times * (counts * each[:, tile.which]).sum(axis=0) for each in (payload, wire)))


def _step(tile: Tile, stages: Ints) -> Iterator[Sent]:
    """What keeps weights equal; stages: of each point."""
    holding, own = tile.shared.holding, tile.groups
    for ranks, codes, ask in (
        (own.dense, own.dense_codes, holding.dense_sent),
        (own.expert, own.expert_codes, holding.expert_sent),
    ):
        each = distinct(stages, codes)
        looked = [ask(tile.stages[stages[at]], ranks[codes[at]]) for at in each.first]
        for axis in dict.fromkeys(axis for found in looked for axis in found.axes):
            payload, wire = (
                np.array([float(amount(found, axis=axis)) for found in looked])[each.codes]
                for amount in (Totals.payload, Totals.wire)
            )
            yield Sent(axis, "step", payload, wire)


# ---- of all stages


def most_of_stages(tile: Tile) -> Most:
    """What the stage that sends most sends, and the one that runs most runs, at every point alive."""
    layers: dict[str, Floats] = {}
    for (axis, _), (_, wire) in tile.table.sent.items():
        layers[axis] = layers.get(axis, 0.0) + wire
    size = tile.points.size
    found = Most(np.zeros(size), {axis: np.zeros(size) for axis in AXES}, np.zeros(size))
    for piped in tile.piped:
        most = maximum_over_stages(_stages(tile, piped, layers), AXES)
        found.wire_bytes[piped.where], found.executed[piped.where] = most.wire_bytes, most.executed
        for axis, column in found.by_axis.items():
            column[piped.where] = most.by_axis[axis]
    return found


def _stages(tile: Tile, piped: Piped, layers: dict[str, Floats]) -> Iterator[tuple[Totals, Floats]]:
    """What each stage of a pipeline sends and executes at the points that have it. layers: wire bytes by axis."""
    where = piped.where
    times, hidden, which = tile.times[where], tile.hidden_states[where], tile.which[where]
    sent = {axis: each[:, which] for axis, each in layers.items()}
    executed = tile.table.flops[1][:, which]
    for stage in piped.senders:
        counts = np.array(stage.counts, np.float64)
        calls = (
            *(Sent(axis, "forward", 0, times * (counts @ each)) for axis, each in sent.items()),
            *between_stages(stage.passes, times, hidden),
            *_step_of(tile, stage, piped),
        )
        yield Totals(calls, np.zeros(len(where))), times * (counts @ executed)


def _step_of(tile: Tile, stage: StageRows, piped: Piped) -> Iterator[Sent]:
    """The wire bytes of the optimizer step of one stage."""
    holding, own = tile.shared.holding, tile.groups
    dense = piped.dense.rows(partial(_wire, holding.dense_sent, stage), own.dense)
    expert = piped.expert.rows(partial(_wire, holding.expert_sent, stage), own.expert)
    yield from (Sent(axis, "step", 0, wire) for axis, wire in zip(AXES, dense + expert, strict=True))


def _wire(ask: Callable[[StageRows, Ranks], Totals], stage: StageRows, ranks: Sequence[Ranks]) -> Any:
    """A row for each ranks, a column for each axis."""
    each = (ask(stage, one) for one in ranks)
    return np.array([[float(found.wire(axis=axis)) for axis in AXES] for found in each])
