"""Which points a plan refuses before it prices a layer: its own rules, asked once for each distinct combination."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from mla_cost.batch.codes import NO_PROGRAM, REQUIREMENT
from mla_cost.batch.points import ALIKE, NOT_OF_LAYERS, NOT_OF_PIPELINES, NOT_OF_STATES, Points, distinct
from mla_cost.declared.schedules import usual
from mla_cost.errors import InputError
from mla_cost.inputs.config import ModelConfig
from mla_cost.inputs.settings import PlanSettings
from mla_cost.mesh.degrees import Parallel
from mla_cost.mesh.legality import problems, sequence_parts
from mla_cost.pricing.resolve import Illegal
from mla_cost.pricing.unpriced import refusal
from mla_cost.pricing.whole_model import parallel_of, require_profile, require_stage, state_settings, unit_problem
from mla_cost.weights.states import shape_of, sharding_problem


def refused(model: ModelConfig, points: Points) -> Any:
    """A code per point: 0 where it may be priced, else why not (`batch.codes`)."""
    if refusal(model) is not None:
        return np.full(points.size, NO_PROGRAM, np.int8)
    wrong = _degrees(model, points) | _pipelines(model, points) | _states(model, points) | _settings(points)
    code = np.where(points["seq_len"] % sequence_parts(points.fields()) != 0, REQUIREMENT, 0)
    return np.where(wrong, NO_PROGRAM, code).astype(np.int8)


def _degrees(model: ModelConfig, points: Points) -> Any:
    """Degrees that widths, heads and experts do not divide by."""
    kept = points.choices(NOT_OF_STATES)

    def wrong(settings: PlanSettings) -> bool:
        parallel = Parallel(settings.tp, 1, 1, settings.ep, settings.etp, settings.dp * settings.sp)
        return bool(problems(parallel, shape_of(model, state_settings(settings))))

    columns = (points["tp"], points["ep"], points["etp"], points.stage_ranks)
    return _asked(points, kept, columns, wrong)


def _pipelines(model: ModelConfig, points: Points) -> Any:
    """Layers that do not split over stages, and schedules that do not exist."""

    def wrong(settings: PlanSettings) -> bool:
        try:
            require_stage(settings)
        except InputError:
            return True
        return bool(problems(pipeline_of(settings), shape_of(model, state_settings(settings))))

    columns = (points["pp"], points["virtual_stages"], scheduled(points))
    return _asked(points, points.choices(NOT_OF_PIPELINES, ALIKE), columns, wrong)


def pipeline_of(settings: PlanSettings) -> Parallel:
    """The degrees that pipelines and their schedules ask for, the others left at one."""
    return parallel_of(settings)._replace(tp=1, sp=1, ep=1, etp=1, dp=1)


def scheduled(points: Points) -> Any:
    """Micro-batches as far as the usual schedules tell them apart; what is asked for by name is told apart by all."""
    m, chunks = points["micro_batches"], points["virtual_stages"]
    if any(name in points.coded or getattr(points.base, name) is not None for name in ("pipeline_layout", "schedule")):
        return m
    fills = np.isin(chunks, [count for count in np.unique(chunks).tolist() if usual(count).fills])
    return np.where(fills, np.minimum(m, points["pp"]), m)


def _states(model: ModelConfig, points: Points) -> Any:
    """Ways to shard states that a pipeline, a model, a profile or the ranks do not take."""
    kept = points.choices(NOT_OF_STATES)

    def wrong(settings: PlanSettings) -> bool:
        keeping = state_settings(settings)
        return bool(sharding_problem(parallel_of(settings), keeping) or unit_problem(model, settings))

    columns = [points["pp"]]
    if any(settings.replicas > 1 for settings in kept.settings):
        experts = points["ep"] * points["etp"]
        columns += [points["dp"] * points["sp"], np.maximum(points.stage_ranks // experts, 1)]
    return _asked(points, kept, tuple(columns), wrong)


def _settings(points: Points) -> Any:
    """Settings that exclude each other."""
    columns = tuple(points[name] for name in ("ep", "etp", "sp", "seq_len"))

    def wrong(settings: PlanSettings) -> bool:
        try:
            require_profile(settings)
        except Illegal:
            return True
        return False

    return _asked(points, points.choices(NOT_OF_LAYERS, ALIKE), columns, wrong)


def _asked(points: Points, choices: Any, columns: tuple[Any, ...], wrong: Callable[[PlanSettings], bool]) -> Any:
    found = distinct(choices.codes, *columns)
    settings = (points.with_numbers(choices.settings[choices.codes[at]], int(at)) for at in found.first)
    return np.array([wrong(each) for each in settings], bool)[found.codes]
