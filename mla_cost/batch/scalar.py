"""One point by `plan`'s own functions: the check of every run, and the words of refusals."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from mla_cost.batch.codes import ILLEGAL, MISSING, STATUSES
from mla_cost.batch.pipelines import Names
from mla_cost.errors import InputError
from mla_cost.inputs.config import DeviceConfig, ModelConfig
from mla_cost.inputs.settings import PlanSettings
from mla_cost.language.program import ProgramError
from mla_cost.pricing import automatic, rows, whole_model
from mla_cost.pricing.evaluation import evaluation
from mla_cost.pricing.resolve import Illegal
from mla_cost.pricing.stage import Place, place_point
from mla_cost.results import Result
from mla_cost.results.columns import figures, result_row
from mla_cost.weights.states import require


def row(
    model: ModelConfig, device: DeviceConfig | None, form: str, settings: PlanSettings, *, timed: bool = False
) -> dict[str, Any]:
    """Every number of a point, as columns hold it. timed: with those of time."""
    try:
        (result,) = rows.rows(model, device, settings.model_copy(update={"form": (form,)}), timed=timed)
    except InputError:
        return refused(settings.scope, timed=timed)
    return coded(result, int(settings.other_memory), timed=timed)


def refused(scope: str, *, timed: bool = False) -> dict[str, Any]:
    """The numbers of a row that is refused."""
    return {**{figure.name: MISSING for figure in figures(scope, timed=timed)}, "status": ILLEGAL}


def coded(result: Result, other_memory: int, *, timed: bool = False) -> dict[str, Any]:
    """The numbers of a result, as columns hold them."""
    reported = result_row(result, other_memory, timed=timed)
    found = {figure.name: reported[figure.name] for figure in figures(result.scope, timed=timed)}
    missing = {name: MISSING for name, number in found.items() if number is None}
    return {**found, **missing, "status": STATUSES.index(reported["status"])}


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
        require(parallel, keeping)
    except (Illegal, InputError, ProgramError) as error:
        return str(error)
    (result,) = rows.rows(model, device, settings.model_copy(update={"form": (form,)}), timed=False)
    return result.verdict.reason if result.verdict else ""


def _places(model: ModelConfig, settings: PlanSettings) -> Iterator[Place]:
    """The layers of a pipeline at their places, as a plan comes to them."""
    names = Names(model, settings.profile, settings.remat_layers)
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
