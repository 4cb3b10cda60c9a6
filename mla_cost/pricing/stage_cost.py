"""A stage with all that a rank of it holds: layers of a whole model, or blocks of attention in a row."""

from __future__ import annotations

from typing import NamedTuple

from mla_cost.mesh.placement import Chunk
from mla_cost.pricing.stage import ChunkCost, StageActivations
from mla_cost.pricing.worst_stage import in_flight_and_working, in_step, stage_peak
from mla_cost.results import Breakdown
from mla_cost.weights.held import RankParameters
from mla_cost.weights.states import States

STEP = "step of gradients in fp32"


class StageCost(NamedTuple):
    """One stage evaluated. Bytes on one rank.

    left: by its chunks, between steps. active: at the peak event, as an allocator has it; shown: the chunks and the
    peak as torch's dispatcher shows them, where that is asked for.
    """

    stage: int
    chunks: tuple[Chunk, ...]
    costs: tuple[ChunkCost, ...]
    held: RankParameters
    states: States
    active: StageActivations
    persistent: tuple[Breakdown, ...] = ()
    left: int = 0
    shown: tuple[tuple[ChunkCost, ...], StageActivations] | None = None

    @property
    def seen(self) -> StageActivations:
        """The activations at the peak that is reported for them."""
        return self.active if self.shown is None else self.shown[1]

    @property
    def saved_bytes(self) -> int:
        """What one micro-batch keeps for backward."""
        return sum(chunk.saved_bytes for chunk in self.costs)

    @property
    def gradient_bytes(self) -> int:
        """Gradients of weights, all of them: in buffers, or tensors of the layers that make them."""
        made = sum(at.num_layers * at.at.gradient_bytes() for chunk in self.costs for at in chunk.segments)
        return self.states.gradient_bytes or made

    @property
    def allowed(self) -> int:
        """What of it is an allowance."""
        return sum(part.bytes for part in self.persistent if part.basis == "budgeted")

    @property
    def beside(self) -> StageActivations:
        """What is alive beside states at the peak event: of the schedule, or of the optimizer step behind it."""
        made = self.states.step_bytes
        if not in_step(self.active.bytes, made):
            return self.active
        return StageActivations(
            *in_flight_and_working(self.active.saved_in_flight, self.active.bytes, made),
            in_flight=(0,) * len(self.costs),
            chunk=0,
            part=None,
            after=STEP,
        )

    @property
    def between_steps(self) -> int:
        """What is allocated when a step has ended."""
        stood: int = self.states.total + sum(part.bytes for part in self.persistent) + self.left
        return stood

    @property
    def peak(self) -> int:
        """States, persistent buffers, and what is alive beside them at the peak event."""
        stood: int = stage_peak(
            self.states.total, sum(part.bytes for part in self.persistent), self.active.bytes, self.states.step_bytes
        )
        return stood
