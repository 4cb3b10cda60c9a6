"""What one pipeline stage holds: its chunks of layers, the micro-batches in flight, and the peak on top of them.

A layer kind is compiled once; a chunk is a word over evaluated layers, and a stage a word over passes through its
chunks. What a layer keeps is what it saves, its input among it, so a pass has most alive at the largest of (what the
layers before keep) + (the layer's own peak). What a stage holds beside is in docs/decisions/0011.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from itertools import accumulate
from typing import Any, Final, NamedTuple

from mla_cost.declared.profiles import PROFILES
from mla_cost.declared.states import Alive, Gathering
from mla_cost.inputs.config import ModelConfig
from mla_cost.inputs.settings import PlanSettings
from mla_cost.language.evaluate import Evaluation, ExactLimitError, LiveBytes, Walk
from mla_cost.language.machine import DTYPE_BYTES
from mla_cost.language.schedule import PassKind
from mla_cost.language.workspace import kinds_of
from mla_cost.mesh.degrees import Parallel
from mla_cost.mesh.placement import Chunk
from mla_cost.mesh.schedule import PassInFlight, worst_passes
from mla_cost.pricing.evaluation import evaluation, too_large
from mla_cost.pricing.resolve import Point, resolve
from mla_cost.pricing.stage_layers import LAYER, MODULE, VARIANTS, Named, layers_of
from mla_cost.pricing.units import Unit, Units
from mla_cost.results import PeakEvent
from mla_cost.weights.parameters import LayerKind, layer_kinds

Held = tuple[str, int]  # what it is, and its bytes
LATER_GRADIENTS: Final = "gradients of the weights of later layers"
Look = Callable[[Evaluation], Walk]


class Segment(NamedTuple):
    """One evaluated layer of one micro-batch. Bytes.

    saved_bytes: between its forward and its backward. forward, backward: where each has most alive, input included,
    without parameters; gradients of weights as the look has it. num_layers: equal ones in a row that it stands for.
    """

    name: str
    point: Point
    at: Evaluation
    saved_bytes: int
    forward: LiveBytes
    backward: LiveBytes
    num_layers: int = 1

    @property
    def peak(self) -> LiveBytes:
        """The first moment at which the most is alive."""
        return self.backward if self.backward.bytes > self.forward.bytes else self.forward

    def event(self, live: LiveBytes) -> PeakEvent:
        """Where in the layer some moment is."""
        found = self.at.account.timeline.events[live.event]
        return PeakEvent(found.phase, found.op)

    @property
    def hidden_bytes(self) -> int:
        """The hidden states of a micro-batch, as stages send them."""
        key = self.point.key
        return key.predicates.elements((key.predicates.rows, "b", "h")).at(self.at.values) * DTYPE_BYTES[key.dtype]


class Part(NamedTuple):
    """A layer at work, at the moment at which it has most alive of its own. Bytes.

    place: among the segments of its chunk. before: kept by the layers before it. held: alive meanwhile beside layers.
    what: what runs instead of the layer itself.
    """

    place: int
    segment: Segment
    live: LiveBytes
    before: int
    held: tuple[Held, ...] = ()
    what: str = ""

    @property
    def bytes(self) -> int:
        """Alive of this micro-batch."""
        return self.before + self.live.bytes + sum(amount for _, amount in self.held)

    @property
    def where(self) -> str:
        """Phase, op and layer."""
        if self.what:
            return f"{self.what} ({self.segment.name})"
        event = self.segment.event(self.live)
        return f"{event.phase} of {event.op} ({self.segment.name})"


class Place(NamedTuple):
    """A layer by the name of its declaration, and whether the stage itself holds its input, and its output's gradient.

    received: the input came from another stage. sent: the output goes to one. spared: nothing of it is run again,
    whatever is asked for.
    """

    layer: str
    received: bool = False
    sent: bool = False
    spared: bool = False


class ChunkCost(NamedTuple):
    """A chunk of layers, one micro-batch: what it keeps, and where its passes have most alive; None without layers."""

    segments: tuple[Segment, ...]
    saved_bytes: int
    forward: Part | None
    backward: Part | None


def place_point(model: ModelConfig, form: str, settings: PlanSettings, place: Place) -> Point:
    """The program of a layer at its place in a chunk, and the values of its symbols.

    Raises:
        Illegal: as `resolve`.

    """
    declared, _, variant = place.layer.partition(" ")
    point = resolve(model, form, settings, declared)
    mixer, indexer = VARIANTS[variant]
    key = point.key._replace(input_held=place.received, gradient_held=place.sent, mixer=mixer, indexer=indexer)
    if place.spared:
        key = key._replace(remat="none")
    return point._replace(key=key)


def segment(model: ModelConfig, form: str, settings: PlanSettings, place: Place, look: Look) -> Segment:
    """One layer evaluated. look: which walk through its events counts.

    Raises:
        Illegal: as `resolve` and `evaluation`.

    """
    point = place_point(model, form, settings, place)
    return segment_at(place.layer, point, evaluation(point), 1, look)


def segment_at(name: str, point: Point, at: Evaluation, count: int, look: Look) -> Segment:
    """`count` equal layers in a row, of which one is evaluated.

    Raises:
        Illegal: sizes leave the range in which every evaluator is exact.

    """
    try:
        walk = look(at)
    except ExactLimitError as error:
        raise too_large(error) from None
    return Segment(name, point, at, at.saved_bytes(), walk.forward, walk.backward, count)


def as_seen(at: Evaluation) -> Walk:
    """What torch's dispatcher shows."""
    return at.walk()


def as_allocated(family: str) -> Look:
    """What an allocator sees on a family of devices: workspace counted, gradients added in place."""
    kinds = kinds_of(family)
    return lambda at: at.walk_accumulated(kinds)


def as_gathered(family: str) -> Look:
    """As `as_allocated`, where all gradients of a layer stay until its backward ends."""
    kinds = kinds_of(family)
    return lambda at: at.walk_allocated(kinds)


class Segments:
    """The segments of a model, each layer kind evaluated once for every place that it has in a chunk."""

    def __init__(
        self,
        model: ModelConfig,
        form: str,
        settings: PlanSettings,
        look: Look,
        kinds: tuple[LayerKind, ...] | None = None,
        *,
        gathering: Gathering | None = None,
        unit: Callable[[str], Unit] | None = None,
    ) -> None:
        """gathering, unit: of weights that are gathered layer by layer, what a moment holds and what a layer has."""
        self._gathering, self._unit = gathering, unit
        self.model = model
        self._asked = (model, form, settings)
        self._again = settings.remat_layers
        self._look = look
        self._known: dict[Place, Segment] = {}
        self.profile = PROFILES[settings.profile]
        self.kinds = layer_kinds(model) if kinds is None else kinds

    def of(self, place: Place) -> Segment:
        """The segment of a layer at its place in a chunk."""
        if place not in self._known:
            self._known[place] = segment(*self._asked, place, self._look)
        return self._known[place]

    def alike(self, chunk: Chunk) -> Hashable:
        """What chunks have in common that cost the same and hold the same weights."""
        return chunk.embedding, tuple(self.kinds[at] for at in chunk.layers), chunk.num_mtp, chunk.loss

    def chunk(self, chunk: Chunk) -> ChunkCost:
        """The segments of a chunk in order."""
        segments = list(map(self.of, self.places(chunk)))
        return chunk_cost(chunk, segments, self._units(segments))

    def left_of(self, costs: Sequence[ChunkCost], chunks: Sequence[Chunk]) -> int:
        """What chunks that received their input go on holding between steps. Bytes."""
        received = [cost for cost, chunk in zip(costs, chunks, strict=True) if cost.segments and not chunk.embedding]
        return sum(self.profile.left_of_chunk * cost.segments[0].hidden_bytes for cost in received)

    def _units(self, segments: Sequence[Segment]) -> Units | None:
        if self._gathering is None or self._unit is None:
            return None
        each = [self._unit(at.name)._replace(gradients=at.at.gradient_bytes()) for at in segments]
        return Units(self._gathering, each)

    def places(self, chunk: Chunk) -> list[Place]:
        """The layers of a chunk in order: embedding, layers, MTP modules, the head."""
        layers = layers_of(self.model, self.kinds, self.profile, chunk)
        numbers = accumulate((named.part.startswith(LAYER) for named in layers), initial=0)
        found = [Place(named.layer, spared=self._spares(named, at)) for named, at in zip(layers, numbers, strict=False)]
        if found and not chunk.embedding:
            found[0] = found[0]._replace(received=True)
        if found and not chunk.loss:
            found[-1] = found[-1]._replace(sent=True)
        return found

    def _spares(self, named: Named, number: int) -> bool:
        """Whether a layer, the one of this number in its chunk, is none of those that are run again.

        Modules that predict further ahead are none either (NVIDIA/Megatron-LM@d98e8a64 megatron/core/recompute.py:
        174-187, transformer/multi_token_prediction.py:1630-1634).
        """
        if self._again is None or (named.kind is None and not named.part.startswith(MODULE)):
            return False
        return number >= self._again or named.part.startswith(MODULE)


def chunk_cost(
    chunk: Chunk, segments: Sequence[Segment], units: Units | None = None, *, gradients_stay: bool = False
) -> ChunkCost:
    """Segments in a row. Arguments as of `chunk_parts`."""
    kept, forward, backward = chunk_parts(chunk, segments, units, gradients_stay=gradients_stay)
    return ChunkCost(tuple(segments), kept, _most(forward), _most(backward))


def chunk_parts(
    chunk: Chunk, segments: Sequence[Segment], units: Units | None = None, *, gradients_stay: bool = False
) -> tuple[int, list[Part], list[Part]]:
    """What segments in a row keep, and each of them at work, forward and backward. Bytes enter as sums only.

    Of equal layers in a row the last has most kept before it. units: the same, where their weights are gathered one by
    one. gradients_stay: those of weights are tensors until all layers have gone back; as they rise while what is kept
    falls, layer by layer, of equal layers the first counts too.
    """
    before = list(accumulate((at.num_layers * at.saved_bytes for at in segments), initial=0))
    last = [kept + (at.num_layers - 1) * at.saved_bytes for kept, at in zip(before, segments, strict=False)]
    forward = [Part(place, at, at.forward, last[place]) for place, at in enumerate(segments)]
    if gradients_stay:
        return before[-1], forward, list(_beside_gradients(segments, before, last))
    held = [tuple(_held(chunk, segments, place)) for place in range(len(segments))]
    backward = [Part(place, at, at.backward, last[place], held[place]) for place, at in enumerate(segments)]
    if units is not None:
        forward, backward = gathered_parts(forward, backward, units)
    return before[-1], forward, backward


def _beside_gradients(segments: Sequence[Segment], before: Sequence[int], last: Sequence[int]) -> Iterator[Part]:
    """Layers that go back beside the gradients of those that have: of each row of equal layers both ends."""
    behind = 0
    for place in reversed(range(len(segments))):
        at = segments[place]
        made = at.at.gradient_bytes()
        yield Part(place, at, at.backward, last[place], ((LATER_GRADIENTS, behind),))
        behind = behind + at.num_layers * made  # another array: a part above has the one before
        yield Part(place, at, at.backward, before[place], ((LATER_GRADIENTS, behind - made),))


def gathered_parts(forward: Sequence[Part], backward: Sequence[Part], units: Units) -> tuple[list[Part], list[Part]]:
    """Every moment of units whose weights are gathered one by one: those of layers at work, and those around them.

    Around them a layer's input is alive in forward; in backward all that it keeps and the gradient of its output, then
    the gradient of its input alone.
    """
    row = units.row

    def around(part: Part, what: str, alive: Any, terms: Sequence[Alive]) -> Part:
        return part._replace(live=LiveBytes(0, alive), what=what, held=tuple(units.alive(terms, part.place)))

    ahead, back = [], []
    for part in forward:
        given = part.segment.hidden_bytes * (part.place > 0)
        ahead.append(around(part, "forward of all-gather", given, row.gather))
        ahead.append(part._replace(held=tuple(units.alive(row.forward, part.place))))
    for part in backward:
        hidden, last = part.segment.hidden_bytes, part.place == len(backward) - 1
        kept = part.segment.saved_bytes + hidden * (not last)
        back.append(around(part, "backward of all-gather", kept, row.regather))
        back.append(part._replace(held=(*part.held, *units.alive(row.backward, part.place))))
        left = hidden * (part.place > 0)
        back.append(around(part, "backward of reduce-scatter", left, row.reduce))
        back.append(around(part, "backward of reduce-scatter", left, row.scatter))
    return ahead, back


def _held(chunk: Chunk, segments: Sequence[Segment], place: int) -> Iterator[Held]:
    """What is alive beside a layer while it goes back: the gradient received, and a shared weight's first gradient."""
    if place < len(segments) - 1 and not chunk.loss:
        yield "gradient received", segments[0].hidden_bytes
    if chunk.embedding and chunk.num_mtp and place <= chunk.num_layers:
        yield "gradient of the embedding, from the modules ahead", segments[0].at.gradient_bytes()


def _most(parts: Sequence[Part]) -> Part | None:
    return max(parts, key=lambda part: part.bytes, default=None)


class StageActivations(NamedTuple):
    """The most that a stage's activations take. Bytes.

    saved_in_flight: by all but the micro-batch at work; working: by that one, in `chunk`, at `part`. in_flight:
    micro-batches of each chunk at that moment, the one at work included. after: what runs instead where no micro-batch
    is in flight.
    """

    saved_in_flight: int
    working: int
    in_flight: tuple[int, ...]
    chunk: int
    part: Part | None
    after: str = ""

    @property
    def bytes(self) -> int:
        """Of all micro-batches."""
        return self.saved_in_flight + self.working

    @property
    def where(self) -> str:
        """Phase, op and layer, or what runs after all passes; empty on a stage without layers."""
        return self.part.where if self.part else self.after


def activations(parallel: Parallel, stage: int, chunks: Sequence[ChunkCost]) -> StageActivations:
    """The peak event of the schedule."""
    return max((during(at, chunks) for at in worst_passes(parallel, stage)), key=lambda moment: moment.bytes)


def during(at: PassInFlight, chunks: Sequence[ChunkCost]) -> StageActivations:
    """The peak event of one pass."""
    kept = sum(count * chunk.saved_bytes for count, chunk in zip(at.beside, chunks, strict=True))
    own = chunks[at.chunk]
    part = own.forward if at.kind is PassKind.FORWARD else own.backward
    in_flight = tuple(count + (index == at.chunk) for index, count in enumerate(at.beside))
    return StageActivations(kept, part.bytes if part else 0, in_flight, at.chunk, part)
