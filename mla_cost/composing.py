"""Stand-in (this branch only): the array engine's interface over plans one by one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from mla_cost import whole_model
from mla_cost.config import DeviceConfig, ModelConfig
from mla_cost.settings import PlanSettings

STATUSES = ("fits", "tight", "oom", "unsupported", "illegal", "none")
MISSING = -1


class Composed(NamedTuple):
    required_bytes: Any
    usable_bytes: Any
    wire_bytes: Any
    wire_by_axis: dict[str, Any]
    flops_executed: Any
    flops_model: Any
    status: Any
    reasons: list[str]

    def reason_of(self, i: int) -> str:
        return self.reasons[i]


def price(
    model: ModelConfig,
    device: DeviceConfig | None,
    form: str,
    settings: PlanSettings,
    columns: Mapping[str, Sequence[Any]],
) -> Composed:
    names = list(columns)
    rows = []
    for values in zip(*columns.values(), strict=True):
        given = {
            name: value.item() if hasattr(value, "item") else value for name, value in zip(names, values, strict=True)
        }
        (row,) = whole_model.rows(model, device, settings.model_copy(update={**given, "form": (form,)}))
        rows.append(row)

    def of(get: Any, dtype: Any = np.int64) -> Any:
        return np.array([MISSING if row.verdict.status == "illegal" else get(row) for row in rows], dtype)

    return Composed(
        of(lambda row: row.verdict.required_bytes),
        of(lambda row: row.verdict.usable_bytes),
        of(lambda row: sum(c.wire_bytes for c in row.communication.collectives)),
        {},
        of(lambda row: row.flops.forward.executed + row.flops.backward.executed, np.float64),
        of(lambda row: row.flops.forward.model + row.flops.backward.model, np.float64),
        np.array([STATUSES.index(row.verdict.status) for row in rows], np.int8),
        [row.verdict.reason for row in rows],
    )
