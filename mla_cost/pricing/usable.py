"""What a device leaves for a plan, and whether that is enough: at one point or at many, by the same lines.

Bytes and ranks are whole numbers or arrays of them; a device and settings are those of one plan.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from mla_cost.declared import defaults
from mla_cost.declared.profiles import PROFILES
from mla_cost.errors import InputError, nearest, shown
from mla_cost.inputs.config import DeviceConfig, ReserveItem
from mla_cost.inputs.settings import PlanSettings
from mla_cost.language.numbers import at_each, how_many, minimum, where
from mla_cost.language.program import StagingShape
from mla_cost.mesh.degrees import sends_to
from mla_cost.results import Status

STATUSES: Final[tuple[Status, ...]] = (
    "fits",
    "tight",
    "oom",
    "unsupported",
)  # the first three in the order of what they are short of
TIGHT: Final = 20  # less headroom than one part in 20 of usable memory is tight
STAGING: Final = "dispatcher buffers"
FRAGMENTATION: Final = "allocator fragmentation"
_FRAGMENTATION_SOURCE: Final = (
    "estimated: {percent} % of visible memory; an out-of-memory log of a training run on an 80 GB device shows 3.48 of "
    "51.64 GiB reserved by torch and unallocated, 6.7 % (modelscope/ms-swift issue 5943); fragmentation_percent sets it"
)


class Groups(NamedTuple):
    """Ranks of each communicator by its name: those that a step's exchanges need, and those made beside them."""

    needed: Mapping[str, Any]
    further: Mapping[str, Any] = {}


class Reserved(NamedTuple):
    """Memory that no tensor can have. bytes, high: a number or an array. item: the device's, unless overridden.

    high: the most that it may be, where it is known as a range, of which bytes is the low end.
    """

    name: str
    bytes: Any
    source: str = ""
    item: ReserveItem | None = None
    high: Any = None


class Usable(NamedTuple):
    """What tensors can have of a device, which verdicts stand on, and the least of it: the high ends of the reserve."""

    bytes: Any
    least: Any


def status(headroom: Any, usable: Any, trained: Any) -> Any:
    """The place in STATUSES. headroom: what is left of the usable memory; trained: whether a kernel trains the plan."""
    return where(trained, how_many(headroom * TIGHT < usable, headroom < 0), STATUSES.index("unsupported"))


def usable(device: DeviceConfig, settings: PlanSettings, groups: Groups, beside: Sequence[Reserved] = ()) -> Usable:
    """What tensors can have of a device: visible memory less the reserve. Bytes. Arguments, errors as `reserve`."""
    items = reserve(device, settings, groups, beside)
    found = device.visible_bytes.integer - sum(item.bytes for item in items)
    return Usable(found, found - beyond(items))


def beyond(items: Sequence[Reserved]) -> Any:
    """What libraries may take beyond the low ends of a reserve. Bytes."""
    return sum(item.high - item.bytes for item in items if item.high is not None)


def reserve(
    device: DeviceConfig, settings: PlanSettings, groups: Groups, beside: Sequence[Reserved] = ()
) -> list[Reserved]:
    """What no tensor can have: itemised, each item overridable by its name.

    beside: items that come with the plan and not with the device.

    Raises:
        InputError: an override of an item that this device does not have.

    """
    known = [*(item.name for item in device.reserve), *(item.name for item in beside), FRAGMENTATION]
    for name in settings.reserve:
        if name not in known:
            raise InputError(
                f"{device.name} has no reserve item {shown(name)}",
                field="reserve",
                allowed=", ".join(known),
                nearest=nearest(name, known),
            )
    node = device.devices_per_node.integer
    items = [*(_of_device(item, groups, node) for item in device.reserve), *beside, _fragmentation(device, settings)]
    found = [_overridden(item, settings) for item in items]
    return found if found[-1].bytes else found[:-1]


def _of_device(item: ReserveItem, groups: Groups, node: int) -> Reserved:
    """node: devices of one."""
    if item.per == "process":
        return Reserved(item.name, item.bytes, item=item)
    amount = sum(map(item.bytes_for, groups.needed.values()))
    if item.high is None:
        return Reserved(item.name, amount, item=item)
    named = (*groups.needed.items(), *groups.further.items())
    high = sum(item.high_bytes_for(size, node, sends_to(axis, size)) for axis, size in named)
    return Reserved(item.name, amount, item=item, high=high)


def _fragmentation(device: DeviceConfig, settings: PlanSettings) -> Reserved:
    """What the allocator holds and cannot hand out: a margin, since it depends on the order of allocations."""
    percent = settings.fragmentation_percent
    if percent is None:
        percent = defaults.FRAGMENTATION_PERCENT[settings.scope]
    lost = device.visible_bytes.integer * percent // 100
    return Reserved(FRAGMENTATION, lost, _FRAGMENTATION_SOURCE.format(percent=percent))


def _overridden(item: Reserved, settings: PlanSettings) -> Reserved:
    if item.name not in settings.reserve:
        return item
    return Reserved(item.name, int(settings.reserve[item.name]), "set with --reserve")


def staging(device: DeviceConfig, settings: PlanSettings, at: Mapping[str, Any]) -> tuple[Reserved, ...]:
    """What the dispatcher takes outside torch, where the model has experts. at: values of the symbols u b h E c e."""
    found = PROFILES[settings.profile].staging.get(settings.dispatcher)
    if found is None or not at.get("e"):
        return ()
    domain = minimum(at["E"], device.linked_devices)
    shape = StagingShape(tokens=at["u"] * at["b"], hidden=at["h"], ranks=at["E"], domain=domain, experts=at["c"])
    amount = at_each(lambda *sizes: found.bytes(StagingShape(*sizes)), *shape)
    return (Reserved(STAGING, amount, f"budgeted, outside torch: {found.source}"),)
