"""What ranks candidates until time is priced: a weight in seconds, with bubbles counted and two kinds of links apart.

weight = (flops / peak + bytes inside a node / its links + bytes between nodes / theirs) / (1 - idle)

Everything runs at the device file's peak figures, one thing after another, and a pipeline's idle share stretches all
of it: an order, no prediction. A group of ranks that spans nodes sends all of its bytes over the links between them,
since the slowest link sets its pace. Where groups lie is `timing.placement`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from numpy.typing import NDArray

from mla_cost.batch.points import DEGREES
from mla_cost.inputs.config import DeviceConfig, Fact
from mla_cost.mesh.degrees import Parallel
from mla_cost.timing.placement import placement

Column = NDArray[Any]
FACTS: Final = ("peak_bf16_dense_tflops", "intra_node_gb_s", "inter_node_gb_s", "devices_per_node")


class Weights(NamedTuple):
    """The rates of a device. flops: a second; inside, between: bytes a second of one rank; node: ranks of a node."""

    flops: float
    inside: float
    between: float
    node: int


def weights_of(device: DeviceConfig) -> Weights:
    """The peak figures of a device's file."""
    return Weights(
        flops=1e12 * _low(device.peak_bf16_dense_tflops),
        inside=1e9 * _low(device.intra_node_gb_s),
        between=1e9 * _low(device.inter_node_gb_s),
        node=device.devices_per_node.integer,
    )


def _low(fact: Fact) -> float:
    """A figure; of a range its low end."""
    return float(min(fact.value) if isinstance(fact.value, tuple) else fact.value)


def sources(device: DeviceConfig) -> dict[str, str]:
    """Where each of FACTS comes from, and which of them nobody has verified."""
    facts = {name: getattr(device, name) for name in FACTS}
    return {
        name: f"{_low(fact):,g} ({device.sources[fact.source]}{'' if fact.verified else '; not verified'})"
        for name, fact in facts.items()
    }


def split(weights: Weights, order: str, at: Mapping[str, Column], sent: Mapping[str, Column]) -> tuple[Column, Column]:
    """Bytes sent inside a node and between nodes.

    order: of axes over devices. at: degrees of each candidate; sent: bytes by axis.
    """
    each: Any = {name: at[name] for name in DEGREES}
    degrees = Parallel(**each)
    ranks, lie = degrees.communicators(experts=True), placement(degrees, order, weights.node)
    wide = {axis: lie.of(axis, ranks[axis]).nodes > 1 for axis in sent}
    inside: Any = sum(amount * ~wide[axis] for axis, amount in sent.items())
    between: Any = sum(amount * wide[axis] for axis, amount in sent.items())
    return inside, between


def weight(weights: Weights, flops: Column, inside: Column, between: Column, idle: Column) -> Column:
    """Seconds of each candidate: what ranks it."""
    busy = flops / weights.flops + inside / weights.inside + between / weights.between
    found: Column = busy / (1 - idle)
    return found
