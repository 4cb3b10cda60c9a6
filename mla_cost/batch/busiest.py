"""What the stage that sends most sends, and the one that runs most runs: the worst stage of memory may be another."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from mla_cost.batch.composed import AXES
from mla_cost.batch.holding import Ranks, sums
from mla_cost.batch.matrices import Floats, Ints
from mla_cost.batch.pipelines import Stage
from mla_cost.weights.sent import StepCollective

_PIPELINE = AXES.index("pp")


class Busiest:
    """The most of all stages taken so far, at each of some points, in one optimizer step. Bytes; executed flops.

    layers: for each axis, by its place in AXES, the wire bytes of one layer of each name (rows) at each point; flops:
    those of such a layer. passed: bytes of the hidden states that go from one chunk to the next. times: micro-batches.
    """

    def __init__(self, *, layers: Mapping[int, Floats], flops: Floats, passed: Floats, times: Floats) -> None:
        self.wire = np.full(len(times), -1.0)
        self.by_axis = np.zeros((len(AXES), len(times)))
        self.executed = np.zeros(len(times))
        self._layers, self._flops, self._passed, self._times = layers, flops, passed, times

    def take(self, stage: Stage, where: Ints, step: Floats) -> None:
        """Take a stage into account. where: the points that have it; step: what its optimizer step sends, by axis."""
        counts, times = np.array(stage.counts, np.float64), self._times[where]
        sent = step.copy()
        for axis, layers in self._layers.items():
            sent[axis] += times * (counts @ layers[:, where])
        sent[_PIPELINE] += times * sum(stage.passes) * self._passed[where]
        total = sent.sum(axis=0)
        more = total > self.wire[where]
        at = where[more]
        self.wire[at], self.by_axis[:, at] = total[more], sent[:, more]
        self.executed[where] = np.maximum(self.executed[where], times * (counts @ self._flops[:, where]))


def wire_of(
    ask: Callable[[Stage, Ranks], Sequence[StepCollective]], stage: Stage
) -> Callable[[Sequence[Ranks]], Floats]:
    """A function from ranks to what the optimizer step of a stage sends: a row for each, a column for each axis."""

    def found(ranks: Sequence[Ranks]) -> Floats:
        calls = (sums(ask(stage, each)) for each in ranks)
        return np.array([[float(each.get(("wire", axis), 0)) for axis in AXES] for each in calls])

    return found
