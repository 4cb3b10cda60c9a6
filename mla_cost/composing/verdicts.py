"""What a device leaves at many points, and whether it is enough."""

from __future__ import annotations

from typing import Any

import numpy as np

from mla_cost import fit
from mla_cost.arrays.codes import MISSING, NONE, UNSUPPORTED
from mla_cost.arrays.matrices import Ints
from mla_cost.composing.points import NOT_OF_VERDICTS, Points
from mla_cost.config import DeviceConfig
from mla_cost.settings import PlanSettings


def other_memory(points: Points) -> Ints:
    """Memory beside the model at every point. Bytes."""
    chosen = points.choices(NOT_OF_VERDICTS)
    return np.array([int(settings.other_memory) for settings in chosen.settings], np.int64)[chosen.codes]


def usable(points: Points, device: DeviceConfig | None) -> Ints:
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
        found[mine] = device.visible_bytes.integer - _reserve(points, device, settings)[mine]
    return found


def _reserve(points: Points, device: DeviceConfig, settings: PlanSettings) -> Any:
    """The reserve is what a process takes and the sum over communicators, so each axis is asked for alone."""
    always = _total(device, settings, {})
    ranks = fit.communicators(points.fields())
    return always + sum(_by_size(device, settings, axis, sizes, always) for axis, sizes in ranks.items())


def _by_size(device: DeviceConfig, settings: PlanSettings, axis: str, sizes: Any, always: int) -> Any:
    different, which = np.unique(sizes, return_inverse=True)
    each = [_total(device, settings, {axis: int(size)}) - always for size in different]
    return np.array(each, np.int64)[which]


def _total(device: DeviceConfig, settings: PlanSettings, groups: dict[str, int]) -> int:
    return sum(item.bytes for item in fit.reserve_items(device, settings, groups))


def statuses(headroom: Ints, free: Ints, trained: Any, device: DeviceConfig | None) -> Any:
    """fits, tight, oom or unsupported; none without a device."""
    if device is None:
        return np.full(len(headroom), NONE, np.int8)
    found = np.add(headroom * fit.TIGHT < free, headroom < 0, dtype=np.int8, casting="unsafe")
    return np.where(trained, found, UNSUPPORTED).astype(np.int8)
