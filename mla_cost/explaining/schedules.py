"""The passes of a pipeline, slot by slot: the data of `plan --picture schedule`."""

from __future__ import annotations

from mla_cost.inputs.settings import PlanSettings
from mla_cost.language.schedule import ScheduleRow, table
from mla_cost.mesh.schedule import schedule_of, size_of
from mla_cost.pricing.whole_model import parallel_of


def rows(settings: PlanSettings) -> list[ScheduleRow]:
    """Every pass of every stage of a pipeline in the first slot that it can run in, were all passes alike."""
    parallel = parallel_of(settings)
    return table(schedule_of(parallel), size_of(parallel))
