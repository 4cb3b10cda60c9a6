"""What a rank sends over the links inside its node and over those between nodes, axis by axis."""

from __future__ import annotations

from mla_cost.inputs.config import DeviceConfig
from mla_cost.inputs.settings import PlanSettings
from mla_cost.results import AxisLinks, Communication
from mla_cost.timing.placement import placement
from mla_cost.timing.rules import sent


def with_links(found: Communication, device: DeviceConfig | None, settings: PlanSettings) -> Communication:
    """The same with its bytes by link; without a device nobody knows what a node is.

    Of a group that nodes share unevenly a rank sends a fraction between them: it is rounded, and what is left counts
    inside, so that both add up.
    """
    if device is None:
        return found
    lie = placement(settings, settings.axis_order, settings.devices_per_node or device.linked_devices)
    wire: dict[str, int] = {}
    between: dict[str, float] = {}
    for call in found.collectives:
        group = lie.of(call.axis, call.group_size, call.apart)
        wire[call.axis] = wire.get(call.axis, 0) + call.wire_bytes
        between[call.axis] = between.get(call.axis, 0) + sent(call.kind, call.wire_bytes, group).between
    rounded = {axis: round(amount) for axis, amount in between.items()}
    return found._replace(links=tuple(AxisLinks(axis, wire[axis] - far, far) for axis, far in rounded.items()))
