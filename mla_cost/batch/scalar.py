"""One point by `plan`'s own functions: the check of every run, and the words of refusals."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from mla_cost.batch.codes import ILLEGAL, MISSING, NONE, STATUSES
from mla_cost.batch.composed import AXES, BYTES
from mla_cost.batch.pipelines import Names
from mla_cost.errors import InputError
from mla_cost.inputs.config import DeviceConfig, ModelConfig
from mla_cost.inputs.settings import PlanSettings
from mla_cost.language.program import ProgramError
from mla_cost.pricing import automatic, whole_model
from mla_cost.pricing.block import evaluation
from mla_cost.pricing.resolve import Illegal
from mla_cost.pricing.stage import Place, place_point
from mla_cost.results import Result, Stage
from mla_cost.weights.states import RankParameters, states


def row(model: ModelConfig, device: DeviceConfig | None, form: str, settings: PlanSettings) -> dict[str, Any]:
    """Every number of a point under the names of `Composed.row`."""
    try:
        (result,) = whole_model.rows(model, device, settings.model_copy(update={"form": (form,)}))
    except InputError:
        return _refused()
    if result.memory.allocated_peak_bytes is None:
        return _refused()
    return _numbers(result, int(settings.other_memory))


def _refused() -> dict[str, Any]:
    names = (*BYTES, "worst_stage", "flops_model", "flops_executed", *(f"wire {axis}" for axis in AXES))
    return {**dict.fromkeys(names, MISSING), "status": ILLEGAL}


def _numbers(result: Result, other: int) -> dict[str, Any]:
    memory, sent, flops = result.memory, result.communication, result.flops
    peak = memory.allocated_peak_bytes or 0
    worst: Stage = (memory.stages or ())[int(str(result.settings["stage"]))]
    states_bytes = sum(part.bytes for part in memory.breakdown if part.name in _STATES)
    verdict = result.verdict
    return {
        "required_bytes": peak + other,
        "usable_bytes": verdict.usable_bytes if verdict else MISSING,
        "headroom_bytes": verdict.headroom_bytes if verdict else MISSING,
        "peak_bytes": peak,
        "state_bytes": states_bytes,
        "weight_bytes": worst.weight_bytes,
        "gradient_bytes": worst.gradient_bytes,
        "optimizer_bytes": worst.optimizer_bytes,
        "standing_bytes": peak - states_bytes - worst.kept_bytes - worst.working_bytes,
        "saved_bytes": memory.saved_bytes,
        "active_bytes": memory.peak_bytes,
        "kept_bytes": worst.kept_bytes,
        "working_bytes": worst.working_bytes,
        "wire_bytes": sum(call.wire_bytes for call in sent.collectives),
        "forward_payload_bytes": sent.forward.payload_bytes,
        "backward_payload_bytes": sent.backward.payload_bytes,
        "forward_wire_bytes": sent.forward.wire_bytes,
        "backward_wire_bytes": sent.backward.wire_bytes,
        **{f"wire {axis}": sum(c.wire_bytes for c in sent.collectives if c.axis == axis) for axis in AXES},
        "flops_model": (flops.forward.model or 0) + (flops.backward.model or 0),
        "flops_executed": (flops.forward.executed or 0) + (flops.backward.executed or 0),
        "worst_stage": worst.stage,
        "status": STATUSES.index(verdict.status) if verdict else NONE,
    }


_STATES = frozenset({"weights", "gradients", "optimizer states", "buffers"})


def reason(
    model: ModelConfig,
    device: DeviceConfig | None,
    form: str,
    settings: PlanSettings,
    choose: Callable[[PlanSettings], PlanSettings],
) -> str:
    """Why a plan refuses a point. choose: puts a kernel in place of `auto`."""
    try:
        settings = _chosen(model, device, form, settings, choose)
        whole_model.require_form(model, form, settings)
        whole_model.require_legal(model, settings)
        whole_model.require_stage(settings)
        for place in _places(model, settings):
            evaluation(place_point(model, form, settings, place))
        parallel, keeping = whole_model.parallel_of(settings), whole_model.state_settings(settings)
        states(RankParameters(0, 0, 0, 0, 0), parallel, keeping)
    except (Illegal, InputError, ProgramError) as error:
        return str(error)
    (result,) = whole_model.rows(model, device, settings.model_copy(update={"form": (form,)}))
    return result.verdict.reason if result.verdict else ""


def _places(model: ModelConfig, settings: PlanSettings) -> Iterator[Place]:
    """The layers of a pipeline at their places, as a plan comes to them."""
    names = Names(model, settings.profile)
    laid_out = names.stages(whole_model.parallel_of(settings))
    yield from dict.fromkeys(place for chunks in laid_out for chunk in chunks for place in names.of(chunk))


def _chosen(
    model: ModelConfig,
    device: DeviceConfig | None,
    form: str,
    settings: PlanSettings,
    choose: Callable[[PlanSettings], PlanSettings],
) -> PlanSettings:
    """The settings with a kernel; where none can be chosen for all points alike, a plan chooses for this one."""
    try:
        return choose(settings)
    except InputError:
        return automatic.with_kernel(model, device, form, settings)[0]
