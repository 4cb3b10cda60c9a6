"""Memory of hosts: what ranks keep there, and whether a node has it."""

from __future__ import annotations

from collections.abc import Sequence

from mla_cost.inputs.config import DeviceConfig
from mla_cost.inputs.settings import PlanSettings
from mla_cost.pricing.stage_cost import StageCost
from mla_cost.results import HostMemory

FACT = "host_memory_bytes"  # of `further` in a device file, of one node


def host_memory(device: DeviceConfig | None, settings: PlanSettings, costs: Sequence[StageCost]) -> HostMemory | None:
    """What the ranks of one node keep on their host, as if all were of the stage that keeps most; None where none do.

    The operating system, data loaders and checkpoints on their way to disk are not in it.
    """
    most = max(costs, key=lambda cost: cost.states.host_bytes).states
    if not most.host_bytes:
        return None
    world = settings.tp * settings.sp * settings.pp * settings.dp
    node = settings.devices_per_node or (device.devices_per_node.integer if device else 1)
    ranks = min(node, world)
    has, source = _available(device, settings)
    return HostMemory(
        bytes=most.host_bytes,
        ranks=ranks,
        node_bytes=most.host_bytes * ranks,
        available_bytes=has,
        status="unknown" if has is None else "fits" if most.host_bytes * ranks <= has else "oom",
        to_host_bytes=most.to_host_bytes,
        from_host_bytes=most.from_host_bytes,
        source=source,
    )


def _available(device: DeviceConfig | None, settings: PlanSettings) -> tuple[int | None, str]:
    if settings.host_memory:
        return int(settings.host_memory), "set with --host-memory"
    fact = device.further.get(FACT) if device else None
    if device is None or fact is None:
        return None, "not known; set it with --host-memory"
    return fact.integer, device.sources[fact.source]


def told(it: HostMemory) -> str:
    """The verdict on hosts in one sentence."""
    gib = 2**30
    node = f"{it.node_bytes / gib:.1f} GiB on a node of {it.ranks}"
    verdict = {
        "unknown": "what its host has is not known (--host-memory)",
        "fits": f"which has {(it.available_bytes or 0) / gib:.0f} GiB: fits",
        "oom": f"which has {(it.available_bytes or 0) / gib:.0f} GiB: does not fit",
    }[it.status]
    return (
        f"optimizer on the host: {it.bytes / gib:.1f} GiB a rank, {node}, {verdict}; a step sends "
        f"{it.to_host_bytes / gib:.2f} GiB of gradients down a rank's host link and {it.from_host_bytes / gib:.2f} GiB "
        "of weights up, and its time on the host is not predicted"
    )
