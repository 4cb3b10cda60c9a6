"""What a device leaves at many points: the rule of `pricing.usable` on arrays."""

from __future__ import annotations

from typing import Any

import numpy as np

from mla_cost.batch.codes import MISSING
from mla_cost.batch.matrices import Ints
from mla_cost.batch.points import DEGREES, NOT_OF_VERDICTS, Points
from mla_cost.inputs.config import DeviceConfig, ModelConfig
from mla_cost.inputs.settings import PlanSettings
from mla_cost.mesh.degrees import Parallel
from mla_cost.pricing.resolve import layer_rows
from mla_cost.pricing.usable import Usable, usable
from mla_cost.pricing.whole_model import groups_of, reserved_beside


def other_memory(points: Points) -> Ints:
    """Memory beside the model at every point. Bytes."""
    chosen = points.choices(NOT_OF_VERDICTS)
    return np.array([int(settings.other_memory) for settings in chosen.settings], np.int64)[chosen.codes]


def usable_bytes(model: ModelConfig, points: Points, device: DeviceConfig | None) -> tuple[Ints, Ints]:
    """Usable memory at every point, and the least of it; MISSING without a device. Bytes.

    Raises:
        InputError: an override of a reserve item that the device does not have.

    """
    found, least = np.full((2, points.size), MISSING, np.int64)
    if device is not None:
        chosen = points.choices(NOT_OF_VERDICTS)
        for at, settings in enumerate(chosen.settings):
            mine = chosen.codes == at
            found[mine], least[mine] = _left(model, device, settings, points.fields(mine))
    return found, least


def check_reserve(model: ModelConfig, device: DeviceConfig, settings: PlanSettings) -> None:
    """Refuse an override of a reserve item that a device does not have, before anything is priced.

    Raises:
        InputError: naming those it has.

    """
    _left(model, device, settings, settings)


def _left(model: ModelConfig, device: DeviceConfig, settings: PlanSettings, fields: Any) -> Usable:
    """What some settings leave. fields: numbers or arrays under the names of a plan's fields."""
    degrees = Parallel(**{name: getattr(fields, name) for name in DEGREES})
    experts = model.num_routed_experts or 0
    at = {"u": layer_rows(fields), "b": 1, "h": model.dims.hidden, "E": fields.ep, "c": experts // fields.ep}
    beside = reserved_beside(device, settings, {**at, "e": experts})
    return usable(device, settings, groups_of(degrees, experts=bool(experts)), beside)
