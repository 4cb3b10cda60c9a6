"""What the stage that sends most sends, and the one that runs most runs: the worst stage of memory may be another."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from mla_cost.arrays.matrices import Floats, Ints
from mla_cost.composing.holding import Ranks, sums
from mla_cost.composing.pipelines import Stage
from mla_cost.states import StepCollective


class Busiest:
    """The most of all stages taken so far, at each of some points, in one optimizer step. Bytes; executed flops.

    layers, flops: wire bytes and flops of one layer of each name (rows), at each point. passed: bytes of the hidden
    states that go from one chunk to the next. times: micro-batches.
    """

    def __init__(self, *, layers: Floats, flops: Floats, passed: Floats, times: Floats) -> None:
        self.wire = np.zeros(len(times))
        self.executed = np.zeros(len(times))
        self._layers, self._flops, self._passed, self._times = layers, flops, passed, times

    def take(self, stage: Stage, where: Ints, step: Floats) -> None:
        """Take a stage into account. where: the points that have it; step: what the optimizer step sends there."""
        counts, times = np.array(stage.counts, np.float64), self._times[where]
        sent = counts @ self._layers[:, where] + sum(stage.passes) * self._passed[where]
        self.wire[where] = np.maximum(self.wire[where], times * sent + step)
        self.executed[where] = np.maximum(self.executed[where], times * (counts @ self._flops[:, where]))


def wire_of(
    ask: Callable[[Stage, Ranks], Sequence[StepCollective]], stage: Stage
) -> Callable[[Sequence[Ranks]], Floats]:
    """A function from ranks to the bytes that the optimizer step sends, a row for each. ask: the calls of a stage."""

    def found(ranks: Sequence[Ranks]) -> Floats:
        calls = (sums(ask(stage, each)) for each in ranks)
        return np.array([[float(sum(size for (what, _), size in each.items() if what == "wire"))] for each in calls])

    return found
