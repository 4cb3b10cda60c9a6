"""What one pipeline stage holds: its chunks of layers, the micro-batches in flight, and the peak on top of them.

A layer kind is compiled once; a chunk is a word over evaluated layers. What a layer keeps is what it saves, its input
among it, so a chunk's peak is the largest of (what the layers before it keep) + (the layer's own peak).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from mla_cost.config import ModelConfig
from mla_cost.evaluate import Evaluation, FenceError, Moment
from mla_cost.figures import evaluation, too_large
from mla_cost.parallel import Chunk, Parallel, in_flight_mixes
from mla_cost.parameters import LayerKind, layer_kinds
from mla_cost.profiles import PROFILES
from mla_cost.resolve import Illegal, Point, resolve
from mla_cost.settings import PlanSettings
from mla_cost.workspace import kinds_of


class Segment(NamedTuple):
    """One evaluated layer of one micro-batch. Bytes.

    kept: between its forward and its backward. peak: most alive in either, input included, without parameters and
    with each gradient of a weight only until it is added to its buffer.
    """

    name: str
    point: Point
    at: Evaluation
    kept: int
    peak: int
    moment: str


class ChunkCost(NamedTuple):
    """A chunk of layers, one micro-batch: kept, and the most that its forward or backward has alive beside others."""

    segments: tuple[Segment, ...]
    kept: int
    peak: int
    where: str


def segment(model: ModelConfig, form: str, settings: PlanSettings, family: str, layer: str) -> Segment:
    """One layer evaluated.

    Raises:
        Illegal: as `resolve` and `evaluation`.

    """
    point = resolve(model, form, settings, layer)
    point = point._replace(key=point.key._replace(input_held=False))
    at = evaluation(point)
    walked = _peak(at, kinds_of(family))
    event = at.account.timeline.events[walked.event]
    return Segment(
        name=layer,
        point=point,
        at=at,
        kept=at.saved_bytes(),
        peak=walked.bytes,
        moment=f"{event.phase} of {event.op}",
    )


def _peak(at: Evaluation, kinds: frozenset[str]) -> Moment:
    try:
        return at.walk_accumulated(kinds).peak
    except FenceError as error:
        raise too_large(error) from None


class Segments:
    """The segments of a model, each layer kind evaluated once."""

    def __init__(self, model: ModelConfig, form: str, settings: PlanSettings, family: str) -> None:
        self.model = model
        self._asked = (form, settings, family)
        self._known: dict[str, Segment] = {}
        self.profile = PROFILES[settings.profile]
        self.kinds = layer_kinds(model)

    def of(self, layer: str) -> Segment:
        """The segment of a layer by the name of its declaration."""
        if layer not in self._known:
            self._known[layer] = segment(self.model, *self._asked, layer)
        return self._known[layer]

    def chunk(self, chunk: Chunk) -> ChunkCost:
        """The segments of a chunk in order."""
        return chunk_cost([self.of(name) for name in self.names(chunk)])

    def names(self, chunk: Chunk) -> list[str]:
        """The declarations that a chunk runs, in order: embedding, layers, MTP modules with their losses, the head."""
        names = ["embedding"] * chunk.embedding
        names += [self.layer(self.kinds[index]) for index in chunk.layers]
        last = self.layer(self.kinds[-1])
        names += ["mtp_input", last, "head"] * chunk.num_mtp
        names += ["head"] * chunk.loss
        return names

    @staticmethod
    def layer(kind: LayerKind) -> str:
        """The declaration that a layer kind runs.

        Raises:
            Illegal: a kind that no declaration covers, by name.

        """
        if kind.attention != 1:
            raise Illegal(
                f"a {kind.label} with {kind.attention} MLA blocks is not priced; --scope attention prices a block"
            )
        if kind.indexer:
            raise Illegal("the indexer of sparse attention is not priced yet; use --scope attention")
        return "moe" if kind.moe else "dense"


def chunk_cost(segments: Sequence[Segment]) -> ChunkCost:
    """Segments in a row."""
    before = peak = 0
    where = ""
    for at in segments:
        if before + at.peak > peak:
            peak, where = before + at.peak, f"{at.moment} ({at.name})"
        before += at.kept
    return ChunkCost(tuple(segments), before, peak, where)


class StageActivations(NamedTuple):
    """The most that a stage's activations take. in_flight: micro-batches kept per chunk at that moment. Bytes."""

    bytes: int
    kept: int
    working: int
    in_flight: tuple[int, ...]
    where: str


def activations(parallel: Parallel, stage: int, chunks: Sequence[ChunkCost]) -> StageActivations:
    """The worst moment of the schedule: all but one micro-batch of a chunk kept, that one at the chunk's own peak."""
    return max(moments(parallel, stage, chunks), key=lambda moment: moment.bytes)


def moments(parallel: Parallel, stage: int, chunks: Sequence[ChunkCost]) -> Iterator[StageActivations]:
    """Every moment that can be the worst, in order. Bytes enter as sums and multiples only."""
    for mix in in_flight_mixes(parallel, stage):
        kept = sum(count * chunk.kept for count, chunk in zip(mix, chunks, strict=True))
        for count, chunk in zip(mix, chunks, strict=True):
            if count:
                others = kept - chunk.kept
                yield StageActivations(others + chunk.peak, others, chunk.peak, mix, chunk.where)
