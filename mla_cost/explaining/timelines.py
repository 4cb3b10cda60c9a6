"""The predicted timeline of a plan, allocation by allocation: what `plan --snapshot-out` writes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from mla_cost.inputs.config import DeviceConfig, ModelConfig
from mla_cost.inputs.settings import PlanSettings
from mla_cost.language.evaluate import Evaluation
from mla_cost.language.timeline import Event
from mla_cost.language.workspace import kinds_of
from mla_cost.pricing.automatic import with_kernel
from mla_cost.pricing.block import figures
from mla_cost.pricing.resolve import resolve
from mla_cost.results import Result


class TimelineStep(NamedTuple):
    """`alloc` or `free` of storage `key`. frames: the tensor, the op and where it runs, innermost first."""

    action: str
    key: int
    bytes: int
    frames: tuple[str, ...] = ()


def timeline(
    model: ModelConfig, device: DeviceConfig | None, settings: PlanSettings, row: Result
) -> list[TimelineStep]:
    """The steps of one micro-batch, on top of what stands for the whole run.

    Of a block the most that lives at once is its allocated peak, to the byte. Of a model the
    layers of the stage that is selected run one after another, whole: what a layer and the next share is twice there.

    Raises:
        Illegal: where no program exists.

    """
    if settings.scope == "model":
        return [*_of_stage(model, device, settings, row)]
    chosen, _ = with_kernel(model, device, row.form, settings)
    family = device.family if device else "none"
    it = figures(resolve(model, row.form, chosen), family, settings.layers)
    weights = [TimelineStep("alloc", 0, it.parameter_bytes, ("weights",))]
    return [*weights, *_run([("block", it.at)] * settings.layers, 1, kinds_of(family))]


def _of_stage(
    model: ModelConfig, device: DeviceConfig | None, settings: PlanSettings, row: Result
) -> Iterator[TimelineStep]:
    from mla_cost.pricing import whole_model

    _, _, costs = whole_model.evaluated(model, device, row.form, settings)
    cost = whole_model.reported(costs, settings)
    stage = (row.memory.stages or ())[cost.stage]
    standing = [
        ("weights", stage.weight_bytes),
        ("gradients", stage.gradient_bytes),
        ("optimizer", stage.optimizer_bytes),
        *((each.name, each.bytes) for each in cost.persistent),
        ("saved by the other micro-batches in flight", stage.kept_bytes),
    ]
    held = [(name, amount) for name, amount in standing if amount]
    for key, (name, amount) in enumerate(held):
        yield TimelineStep("alloc", key, amount, (name, f"stage {cost.stage}"))
    layers = [(f"layer {segment.name}", segment.at) for segment in cost.costs[cost.active.chunk].segments]
    yield from _run(layers, len(held), kinds_of(device.family if device else "none"))


def _run(layers: Sequence[tuple[str, Evaluation]], first: int, kinds: frozenset[str]) -> Iterator[TimelineStep]:
    """Layers forward in order and backward in reverse. first: their first storage's number; kinds: of workspace."""
    offsets = [first]
    for _, at in layers:
        offsets.append(offsets[-1] + len(at.account.timeline.allocations))
    same: dict[int, int] = {}  # the sum of two gradients lies where the first of them did
    for place, (where, at) in enumerate(layers):
        events = range(at.account.timeline.forward_events)
        yield from _steps(where, at, events, offsets[place], same, kinds)
    for place, (where, at) in reversed([*enumerate(layers)]):
        events = range(at.account.timeline.forward_events, len(at.account.timeline.events))
        yield from _steps(where, at, events, offsets[place], same, kinds)


def _steps(
    where: str, at: Evaluation, places: range, offset: int, same: dict[int, int], kinds: frozenset[str]
) -> Iterator[TimelineStep]:
    summed = 0
    for place in places:
        event = at.account.timeline.events[place]
        if event.allocation is None:
            yield from _workspace(where, event, at.work_at(place, kinds), -(offset + place + 1))
            continue
        number, key = event.allocation.number, offset + event.allocation.number
        if event.merged and event.what == "alloc":
            summed = key
        elif event.merged:
            same[summed] = same.pop(key, key)
        else:
            frames = (event.allocation.label, f"{event.phase} of {event.op}", where)
            key = same.pop(key, key) if event.what == "free" else key
            yield TimelineStep(event.what, key, at.bytes_of(key - offset if event.what == "free" else number), frames)


def _workspace(where: str, event: Event, amount: int, key: int) -> Iterator[TimelineStep]:
    """What a kernel holds inside one call."""
    if amount:
        frames = ("kernel workspace", f"{event.phase} of {event.op}", where)
        yield from (TimelineStep(action, key, amount, frames) for action in ("alloc", "free"))
