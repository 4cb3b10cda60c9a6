"""What a device leaves at many points, and whether it is enough."""

from __future__ import annotations

from typing import Any

import numpy as np

from mla_cost.batch.codes import MISSING, NONE, UNSUPPORTED
from mla_cost.batch.matrices import Ints
from mla_cost.batch.points import DEGREES, NOT_OF_VERDICTS, Points, distinct
from mla_cost.inputs.config import DeviceConfig, ModelConfig
from mla_cost.inputs.settings import PlanSettings
from mla_cost.mesh.degrees import Parallel
from mla_cost.pricing import verdict
from mla_cost.pricing.resolve import layer_rows
from mla_cost.pricing.whole_model import bucket


def other_memory(points: Points) -> Ints:
    """Memory beside the model at every point. Bytes."""
    chosen = points.choices(NOT_OF_VERDICTS)
    return np.array([int(settings.other_memory) for settings in chosen.settings], np.int64)[chosen.codes]


def usable(model: ModelConfig, points: Points, device: DeviceConfig | None) -> Ints:
    """Usable memory at every point; MISSING without a device. Bytes.

    Raises:
        InputError: an override of a reserve item that the device does not have.

    """
    if device is None:
        return np.full(points.size, MISSING, np.int64)
    chosen = points.choices(NOT_OF_VERDICTS)
    found = np.empty(points.size, np.int64)
    for at, settings in enumerate(chosen.settings):
        mine = chosen.codes == at
        found[mine] = device.visible_bytes.integer - _Reserve(model, device, settings).at(points.part(mine))
    return found


def check_reserve(model: ModelConfig, device: DeviceConfig, settings: PlanSettings) -> None:
    """Refuse an override of a reserve item that a device does not have, before anything is priced.

    Raises:
        InputError: naming those it has.

    """
    _Reserve(model, device, settings).total({})


class _Reserve:
    """What no tensor can have on a device under some settings. Bytes."""

    def __init__(self, model: ModelConfig, device: DeviceConfig, settings: PlanSettings) -> None:
        self.model, self.device, self.settings = model, device, settings
        self.always = self.total({})

    def total(self, groups: dict[str, int], rows: int = 1, ep: int = 1) -> int:
        """With communicators of these ranks, and what a dispatcher takes for rows of a rank over ep."""
        experts = self.model.num_routed_experts or 0
        at = {"u": rows, "b": 1, "h": self.model.dims.hidden, "E": ep, "c": experts // ep, "e": experts}
        beside = (*verdict.staging(self.device, self.settings, at), *bucket(self.settings))
        return sum(item.bytes for item in verdict.reserve_items(self.device, self.settings, groups, beside))

    def at(self, points: Points) -> Any:
        """The reserve is a sum over what is taken once and over communicators, so each axis is asked for alone."""
        fields: Any = points.fields()
        degrees = Parallel(**{name: getattr(fields, name) for name in DEGREES})
        ranks = degrees.communicators(experts=bool(self.model.num_routed_experts))
        return self._once(fields) + sum(self._by_size(axis, sizes) for axis, sizes in ranks.items())

    def _once(self, fields: Any) -> Any:
        """What is taken whatever the communicators are."""
        if not verdict.staging(self.device, self.settings, {"u": 1, "b": 1, "h": 1, "E": 1, "c": 1, "e": 1}):
            return self.always
        rows = layer_rows(fields)
        found = distinct(rows, fields.ep)
        each = [self.total({}, int(rows[at]), int(fields.ep[at])) for at in found.first]
        return np.array(each, np.int64)[found.codes]

    def _by_size(self, axis: str, sizes: Any) -> Any:
        different, which = np.unique(sizes, return_inverse=True)
        return np.array([self.total({axis: int(size)}) - self.always for size in different], np.int64)[which]


def statuses(headroom: Ints, free: Ints, trained: Any, device: DeviceConfig | None) -> Any:
    """fits, tight, oom or unsupported; none without a device."""
    if device is None:
        return np.full(len(headroom), NONE, np.int8)
    found = np.add(headroom * verdict.TIGHT < free, headroom < 0, dtype=np.int8, casting="unsafe")
    return np.where(trained, found, UNSUPPORTED).astype(np.int8)
