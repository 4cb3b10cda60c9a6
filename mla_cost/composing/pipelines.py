"""Stages of a pipeline as rows over what layers keep and need: compiled once per layout and schedule."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple

import numpy as np

from mla_cost.arrays.matrices import Floats, winners
from mla_cost.config import ModelConfig
from mla_cost.parallel import Chunk, Parallel, stages
from mla_cost.settings import PlanSettings
from mla_cost.stage import ChunkCost, Segments, moments


class Stage(NamedTuple):
    """One stage that can be the worst of its pipeline. `names` of layers give the columns.

    needs, kept: rows over (kept of each layer, peak of each layer); a moment takes needs, of which `kept` belongs to
    the micro-batches in flight but one. counts: layers of each name in one micro-batch. ends: what it holds beside
    transformer layers, as chunks without any. passes: chunks whose output, and whose input's gradient, go on.
    """

    stage: int
    needs: Floats
    kept: Floats
    counts: tuple[int, ...]
    kinds: tuple[tuple[int, int], ...]  # index of a layer of each kind, and how many of them
    ends: tuple[Chunk, ...]
    passes: tuple[int, int]


class Names:
    """The declarations that the layers of a model run, in a fixed order."""

    def __init__(self, model: ModelConfig, form: str) -> None:
        self.model = model
        self.segments = Segments(model, form, PlanSettings(), "none")
        layers = [Segments.layer(kind) for kind in self.segments.kinds]
        mtp = ["mtp_input"] if model.num_mtp_layers else []
        self.names = tuple(dict.fromkeys(["embedding", *layers, *mtp, "head"]))
        self._first: dict[Any, int] = {}
        for index, kind in enumerate(self.segments.kinds):
            self._first.setdefault(kind, index)

    def __len__(self) -> int:
        return len(self.names)

    def of(self, chunk: Chunk) -> list[int]:
        """What a chunk runs, in order, as places among the names."""
        return [self.names.index(name) for name in self.segments.names(chunk)]

    def kinds(self, chunks: Sequence[Chunk]) -> tuple[tuple[int, int], ...]:
        """For every kind of layer in chunks, the index of one such layer and how many they are."""
        every = Counter(self.segments.kinds[index] for chunk in chunks for index in chunk.layers)
        return tuple(sorted((self._first[kind], count) for kind, count in every.items()))


def pipeline(names: Names, parallel: Parallel) -> tuple[Stage, ...]:
    """The stages that can be the worst, in order.

    A stage is dropped where an earlier one of equal layers needs as much at every moment: of equal ones the first is
    the worst.
    """
    kept: list[tuple[Hashable, Stage]] = []
    for at, chunks in enumerate(stages(parallel, names.model.num_layers or 0, names.model.num_mtp_layers or 0)):
        runs = tuple(tuple(names.of(chunk)) for chunk in chunks)
        alike = (runs, names.kinds(chunks))
        found = _stage(names, parallel, at, chunks, runs)
        if not any(same == alike and _covers(other.needs, found.needs) for same, other in kept):
            kept.append((alike, found))
    return tuple(stage for _, stage in kept)


def _covers(larger: Floats, smaller: Floats) -> bool:
    """Whether every row is reached by one of the larger."""
    reached: Any = (smaller[:, None, :] <= larger[None, :, :]).all(axis=-1)
    return bool(reached.any(axis=1).all())


def _stage(names: Names, parallel: Parallel, at: int, chunks: Sequence[Chunk], runs: Sequence[Sequence[int]]) -> Stage:
    needs, kept = _moments(len(names), parallel, at, runs)
    won = winners(needs)
    counts = Counter(name for run in runs for name in run)
    return Stage(
        stage=at,
        needs=needs[won],
        kept=kept[won],
        counts=tuple(counts[name] for name in range(len(names))),
        kinds=names.kinds(chunks),
        ends=tuple(chunk._replace(first=0, num_layers=0) for chunk in chunks),
        passes=(sum(not chunk.loss for chunk in chunks), sum(not chunk.embedding for chunk in chunks)),
    )


def _moments(count: int, parallel: Parallel, at: int, runs: Sequence[Sequence[int]]) -> tuple[Floats, Floats]:
    """Every moment of the schedule at every layer of the chunk that works, over layers.

    The schedule adds up chunks whatever their bytes are, so it is asked with unit vectors: 2 for each chunk.
    """
    units: Any = np.eye(2 * len(runs))
    asked = [ChunkCost((), units[2 * chunk], units[2 * chunk + 1], "") for chunk in range(len(runs))]
    whole = np.array([_kept(count, run) for run in runs])
    peaks = [_peaks(count, run) for run in runs]
    needs, kept = [], []
    for moment in moments(parallel, at, asked):
        taken: Any = moment.bytes
        others: Any = moment.kept
        (working,) = np.flatnonzero(taken[1::2])
        needs += [taken[0::2] @ whole + peak for peak in peaks[working]]
        kept += [others[0::2] @ whole] * len(peaks[working])
    return np.array(needs), np.array(kept)


def _kept(count: int, run: Sequence[int]) -> Floats:
    found = np.zeros(2 * count)
    for name in run:
        found[name] += 1
    return found


def _peaks(count: int, run: Sequence[int]) -> list[Floats]:
    """What layers before it keep, and a layer's own peak; of equal layers in a row the last has most before it."""
    found: list[Floats] = []
    before = np.zeros(2 * count)
    for at, name in enumerate(run):
        if run[at + 1 : at + 2] != run[at : at + 1]:
            peak = before.copy()
            peak[count + name] += 1
            found.append(peak)
        before[name] += 1
    return found or [before]
