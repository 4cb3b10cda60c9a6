"""What a rank of every stage sends, runs and saves in one optimizer step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from mla_cost.inputs.config import DeviceConfig, ModelConfig
from mla_cost.inputs.settings import PlanSettings
from mla_cost.language.machine import DTYPE_BYTES
from mla_cost.pricing.flops import executed, flops
from mla_cost.pricing.stage import Segment
from mla_cost.pricing.stage_cost import StageCost
from mla_cost.pricing.step_traffic import (
    Most,
    Totals,
    all_calls,
    between_stages,
    collectives,
    communication,
    hidden_states,
    maximum_over_stages,
    passes,
)
from mla_cost.pricing.whole_model import evaluated, parallel_of, state_settings
from mla_cost.results import CollectiveCost, Communication, Flops
from mla_cost.results.columns import AXES
from mla_cost.weights.sent import step_collectives


def stage_work(
    model: ModelConfig, device: DeviceConfig | None, form: str, settings: PlanSettings
) -> list[tuple[Communication, Flops]]:
    """What a rank of every stage sends and runs in one optimizer step.

    Raises:
        Illegal: as `stage_costs`.

    """
    chosen, _, costs = evaluated(model, device, form, settings)
    return [
        (sent, stage_flops(cost, chosen))
        for sent, cost in zip(communications(model, costs, chosen), costs, strict=True)
    ]


def most_of_stages(model: ModelConfig, device: DeviceConfig | None, form: str, settings: PlanSettings) -> Most:
    """What a rank sends and runs of the stage that sends, or runs, most.

    Raises:
        Illegal: as `stage_costs`.

    """
    work = stage_work(model, device, form, settings)
    stages = ((Totals(sent.collectives), executed(of_stage)) for sent, of_stage in work)
    return maximum_over_stages(stages, tuple(AXES.values()))


def saved(
    model: ModelConfig, device: DeviceConfig | None, form: str, settings: PlanSettings, stage: int
) -> Counter[tuple[str, str, int]]:
    """What one micro-batch keeps for backward on a stage: layer, name and bytes of every storage.

    Raises:
        Illegal: as `stage_costs`.

    """
    _, _, costs = evaluated(model, device, form, settings)
    found: Counter[tuple[str, str, int]] = Counter()
    for layer in _segments(costs[stage]):
        at, allocations = layer.at, layer.at.account.timeline.allocations
        for number in at.account.saved:
            found[layer.name, allocations[number].label, at.bytes_of(number)] += layer.num_layers
    return found


def _segments(cost: StageCost) -> Iterable[Segment]:
    return (segment for chunk in cost.costs for segment in chunk.segments)


# ---- sent


def communications(model: ModelConfig, costs: Sequence[StageCost], settings: PlanSettings) -> list[Communication]:
    """What a rank of every stage sends; stages of equal layers, which share their chunks' costs, send the same."""
    alike = {id(cost.costs): cost for cost in costs}
    found = {each: _communication(model, cost, settings) for each, cost in alike.items()}
    return [found[id(cost.costs)] for cost in costs]


def _communication(model: ModelConfig, cost: StageCost, settings: PlanSettings) -> Communication:
    """One optimizer step of one rank of a stage: every micro-batch, then what keeps weights equal."""
    return communication((*_layers(cost, settings), *_between_stages(model, cost, settings), *_step(cost, settings)))


def _layers(cost: StageCost, settings: PlanSettings) -> Iterable[CollectiveCost]:
    """What layers send, collectives of one kind and tensor joined."""
    found: dict[tuple[str | int, ...], CollectiveCost] = {}
    for segment in _segments(cost):
        for called in collectives(segment.at, segment.num_layers * settings.micro_batches):
            key = (called.kind, called.tensor, called.phase, called.axis, called.dtype, called.apart)
            found[key] = _joined(found[key], called) if key in found else called
    return found.values()


def _joined(first: CollectiveCost, second: CollectiveCost) -> CollectiveCost:
    return first._replace(
        count=first.count + second.count,
        payload_bytes=first.payload_bytes + second.payload_bytes,
        wire_bytes=first.wire_bytes + second.wire_bytes,
    )


def _between_stages(model: ModelConfig, cost: StageCost, settings: PlanSettings) -> Iterator[CollectiveCost]:
    """Hidden states to the next chunk and their gradients to the chunk before, point to point."""
    passed, times = passes(cost.chunks), settings.micro_batches
    once = hidden_states(settings, model.dims.hidden, DTYPE_BYTES[settings.dtype])
    names = "hidden states", "gradient of hidden states"
    for name, count, sent in zip(names, passed, between_stages(passed, times, once), strict=True):
        if sent.wire_bytes:
            yield CollectiveCost(
                "point_to_point", name, sent.phase, sent.axis, settings.pp, count * times, settings.dtype, *sent[2:]
            )


def _step(cost: StageCost, settings: PlanSettings) -> Iterator[CollectiveCost]:
    """What keeps weights equal."""
    for called in step_collectives(cost.held, parallel_of(settings), state_settings(settings)):
        yield CollectiveCost(
            called.kind,
            called.tensor,
            called.phase,
            called.axis,
            called.group_size,
            called.calls,
            called.dtype,
            *all_calls(called)[2:],
        )


# ---- run


def stage_flops(cost: StageCost, settings: PlanSettings) -> Flops:
    """One optimizer step of one rank of a stage."""
    return flops(
        [(segment.at, segment.num_layers) for segment in _segments(cost)], settings.micro_batches, settings.causal
    )
