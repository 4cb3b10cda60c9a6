"""What is alive at a moment, tensor by tensor, in each of the three ways to look at a timeline."""

from __future__ import annotations

from collections.abc import Iterator

from mla_cost.language.evaluate import Evaluation
from mla_cost.language.machine import Allocation, Timeline


def seen(at: Evaluation, event: int) -> Iterator[Allocation]:
    """The storages that torch's dispatcher shows right after an event, as `Evaluation.walk` counts them."""
    return (
        allocation
        for allocation in at.account.timeline.allocations
        if allocation.kind != "parameter_gradient" and allocation.alive_at(event)
    )


def allocated(at: Evaluation, event: int, *, until_gathered: bool = False) -> Iterator[Allocation]:
    """The storages that an allocator holds at an event, as `Evaluation.walk_allocated` counts them.

    until_gathered: as `walk_accumulated`, where the gradient of a weight dies once it is added to its buffer.
    """
    run = at.account.timeline
    adding = _adding(run, event)
    for allocation in run.allocations:
        if allocation.number == adding or not allocation.alive_at(event):
            continue
        if until_gathered and allocation.kind == "parameter_gradient" and allocation.gathered <= event:
            continue
        yield allocation


def _adding(run: Timeline, event: int) -> int | None:
    """The sum of two gradients that dispatchers show before the first of them goes: an allocator adds in place."""
    adding = None
    for at in run.events[: event + 1]:
        if at.merged and at.allocation is not None:
            adding = at.allocation.number if at.what == "alloc" else None
    return adding
