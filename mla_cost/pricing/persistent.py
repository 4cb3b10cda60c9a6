"""Persistent buffers: tensors that stand for the whole run, once however many layers share them, and allowances.

Sizes may be numbers of one plan or arrays of many.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from mla_cost.declared.layers import LAYERS
from mla_cost.language.machine import DTYPE_BYTES
from mla_cost.language.program import Profile
from mla_cost.pricing.stage import ChunkCost, Segment
from mla_cost.results import Breakdown


class Buffer(NamedTuple):
    """A tensor that a layer keeps for the whole run. Rows, elements of a row, bytes of an element; each: as there."""

    name: str
    outer: Any
    inner: Any
    element_bytes: int
    each: bool = False

    @property
    def bytes(self) -> Any:
        """Of one."""
        return self.outer * self.inner * self.element_bytes


def by_name(buffers: Iterable[Buffer]) -> dict[str, Any]:
    """Bytes of each name: layers share a tensor of one name and shape, unless each has its own."""
    seen: dict[str, list[Buffer]] = {}
    found: dict[str, Any] = {}
    for buffer in buffers:
        before = seen.setdefault(buffer.name, [])
        new: Any = True
        for other in before:
            new = new & ((buffer.outer != other.outer) | (buffer.inner != other.inner))
        found[buffer.name] = found.get(buffer.name, 0) + new * buffer.bytes
        if not buffer.each:
            before.append(buffer)
    return found


def allowances(profile: Profile, layers: Iterable[str], arch: str) -> dict[str, int]:
    """What a profile budgets for a stage with these layers, by name. Bytes."""
    present = [LAYERS[name] for name in set(layers)]
    return {item.name: item.at(arch) for item in profile.allowances if item.taken_by(present)}


def persistent_buffers(costs: Sequence[ChunkCost], profile: Profile, arch: str) -> tuple[Breakdown, ...]:
    """What stands for the whole run of a stage: tensors (counted) and allowances (budgeted)."""
    segments = [segment for cost in costs for segment in cost.segments]
    counted = by_name(buffer for segment in segments for buffer in _buffers(segment))
    budgeted = allowances(profile, (segment.point.key.layer for segment in segments), arch)
    return (
        *(Breakdown(name, amount, "counted") for name, amount in counted.items()),
        *(Breakdown(name, amount, "budgeted") for name, amount in budgeted.items()),
    )


def _buffers(segment: Segment) -> Iterable[Buffer]:
    size, values = segment.point.key.predicates.elements, segment.at.values
    for item in segment.at.account.timeline.persistent:
        outer, inner = size(item.outer).at(values), size(item.inner).at(values)
        yield Buffer(item.name, outer, inner, DTYPE_BYTES[item.dtype], item.each)
