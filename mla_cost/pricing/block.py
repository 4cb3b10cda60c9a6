"""One block of attention, or equal ones in a row: one stage of layers without ends, one micro-batch, no optimizer.

Its peaks are found as those of any stage (`mla_cost.pricing.stage`). What is its own: gradients of weights are tensors
that stay until all blocks have gone back, since nothing stands that they could be added to.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final, NamedTuple

from mla_cost.language.evaluate import EXACT_LIMIT, Evaluation, ExactLimitError
from mla_cost.language.workspace import kinds_of
from mla_cost.mesh.degrees import Parallel
from mla_cost.mesh.placement import Chunk
from mla_cost.pricing.evaluation import evaluation, too_large
from mla_cost.pricing.key import Key
from mla_cost.pricing.resolve import Point
from mla_cost.pricing.stage import ChunkCost, Look, Segment, activations, as_gathered, as_seen, chunk_cost, segment_at
from mla_cost.pricing.stage_cost import StageCost
from mla_cost.weights.held import RankParameters
from mla_cost.weights.states import weights_alone

# from whose first layer nothing goes back to another stage, and from whose last nothing goes on
ALONE: Final = Chunk(embedding=True, first=0, num_layers=1, num_mtp=0, loss=True)


class BlockFigures(NamedTuple):
    """`layers` equal blocks as a stage, for one family's kernel workspace. All bytes, one rank.

    kinds: the workspace that counts.
    """

    stage: StageCost
    kinds: frozenset[str]

    @property
    def layers(self) -> int:
        """How many blocks."""
        return sum(chunk.num_layers for chunk in self.stage.chunks)

    @property
    def allocated(self) -> Segment:
        """The first block as an allocator has it, without the parameters."""
        return self.stage.costs[0].segments[0]

    @property
    def seen(self) -> Segment:
        """The first block as torch's dispatcher shows it."""
        assert self.stage.shown is not None
        return self.stage.shown[0][0].segments[0]

    @property
    def point(self) -> Point:
        """The program of the first block."""
        return self.allocated.point

    @property
    def at(self) -> Evaluation:
        """That program evaluated."""
        return self.allocated.at

    @property
    def saved_bytes(self) -> int:
        """What all blocks keep between forward and backward."""
        return self.stage.saved_bytes

    @property
    def peak_bytes(self) -> int:
        """The most alive as torch's dispatcher shows it."""
        return self.stage.seen.bytes

    @property
    def parameter_bytes(self) -> int:
        """Weights of all blocks."""
        return self.stage.states.weight_bytes

    @property
    def gradient_bytes(self) -> int:
        """Gradients of all weights."""
        return self.stage.gradient_bytes

    @property
    def allocated_peak_bytes(self) -> int:
        """The most that an allocator has, with the weights."""
        return self.stage.peak


def figures(point: Point, family: str, layers: int = 1) -> BlockFigures:
    """The figures of a row of `layers` equal blocks.

    Raises:
        Illegal: as `evaluation`.

    """
    return BlockFigures(block_stage(point, family, layers), kinds_of(family))


def block_stage(point: Point, family: str, layers: int = 1) -> StageCost:
    """A row of equal blocks as the one stage of a pipeline.

    Raises:
        Illegal: as `evaluation`.

    """
    blocks = [(point, evaluation(point), 1)]
    if layers > 1:
        inner = _inner(point)
        blocks.append((inner, evaluation(inner), layers - 1))

    def cost(look: Look, *, gradients_stay: bool) -> ChunkCost:
        segments = [segment_at("", *block, look) for block in blocks]
        return chunk_cost(ALONE, segments, gradients_stay=gradients_stay)

    shown, costs = (cost(as_seen, gradients_stay=False),), (cost(as_gathered(family), gradients_stay=True),)
    weights = layers * blocks[0][1].parameter_bytes()
    alone = Parallel()
    found = StageCost(
        stage=0,
        chunks=(ALONE._replace(num_layers=layers),),
        costs=costs,
        held=RankParameters(),
        states=weights_alone(weights),
        active=activations(alone, 0, costs),
        shown=(shown, activations(alone, 0, shown)),
    )
    if max(found.peak, found.seen.bytes) >= EXACT_LIMIT:
        raise too_large(ExactLimitError(f"{layers} blocks"))
    return found


@lru_cache(maxsize=4096)
def _inner_key(key: Key) -> Key:
    return key._replace(input_held=False)


def _inner(point: Point) -> Point:
    """A block whose input nobody else holds: every one of a row but the first."""
    return point._replace(key=_inner_key(point.key))
