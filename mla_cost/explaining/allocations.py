"""Every storage that a plan makes: its name, size, and the moment at which it is made, on each stage."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from mla_cost.declared.optimizers import OPTIMIZERS
from mla_cost.inputs.config import DeviceConfig, ModelConfig
from mla_cost.inputs.settings import PlanSettings
from mla_cost.language.evaluate import Evaluation
from mla_cost.pricing.automatic import with_kernel
from mla_cost.pricing.block import figures
from mla_cost.pricing.resolve import resolve
from mla_cost.results import Result


class Made(NamedTuple):
    """One storage. where: the stage and layer, or the block; times: of equal ones, how many are made alike."""

    where: str
    name: str
    bytes: int
    dims: str
    phase: str
    op: str
    saved: bool
    times: int = 1


def allocations(model: ModelConfig, device: DeviceConfig | None, settings: PlanSettings, row: Result) -> list[Made]:
    """The storages of one micro-batch, in the order in which they are made, and what stands for the whole run.

    Raises:
        Illegal: where no program exists.

    """
    if settings.scope == "model":
        return [*_of_stages(model, device, settings, row)]
    chosen, _ = with_kernel(model, device, row.form, settings)
    at = figures(resolve(model, row.form, chosen), device.family if device else "none", settings.layers).at
    return [*_made("block", at, settings.layers)]


def _of_stages(model: ModelConfig, device: DeviceConfig | None, settings: PlanSettings, row: Result) -> Iterator[Made]:
    from mla_cost.pricing import whole_model

    _, _, costs = whole_model.evaluated(model, device, row.form, settings)
    for cost in costs:
        counts: dict[int, int] = {}
        segments = {id(segment): segment for chunk in cost.costs for segment in chunk.segments}
        for chunk in cost.costs:
            for segment in chunk.segments:
                counts[id(segment)] = counts.get(id(segment), 0) + 1
        for key, segment in segments.items():
            yield from _made(f"stage {cost.stage}, layer {segment.name}", segment.at, counts[key])
        where = f"stage {cost.stage}"
        for each in cost.persistent:
            yield Made(where, each.name, each.bytes, "", "start", "held for the whole run", saved=False)
    for stage in row.memory.stages or ():
        where = f"stage {stage.stage}"
        whole = (("weights", stage.weight_bytes), ("gradients", stage.gradient_bytes))
        for name, amount in (*whole, *_states(settings, stage.moments_bytes)):
            if amount:
                yield Made(where, name, amount, "", "start", "held for the whole run", saved=False)


def _states(settings: PlanSettings, amount: int) -> list[tuple[str, int]]:
    """What the optimizer keeps for itself: each of its tensors where all are of the same weights, else together."""
    tensors = OPTIMIZERS[settings.optimizer].tensors
    if len({each.of for each in tensors}) > 1:
        return [("the optimizer's states", amount)]
    return [(f"the optimizer's {each.name}", amount // len(tensors)) for each in tensors]


def _made(where: str, at: Evaluation, times: int) -> Iterator[Made]:
    for each in at.account.timeline.allocations:
        amount = at.bytes_of(each.number)
        yield Made(where, each.label, amount, " ".join(each.dims), each.phase, each.op, each.saved, times)
