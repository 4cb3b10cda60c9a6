"""What torch's CPU allocator really hands out, from the profiler's allocation events, at small dims.

This sees what a dispatch mode cannot: what a kernel allocates inside one call (its workspace), and the autograd
engine adding gradients in place, which it does only while no dispatch mode is active.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
from torch._C._profiler import _EventType
from torch.profiler import ProfilerActivity, profile

from mla_cost.checks.reference.measure import Tail, tensors_in

NUMBER_BYTES = 8  # a kernel that is given a Python number makes a tensor of it: 4 or 8 bytes, none of ours


@dataclass(frozen=True)
class DeviceAllocation:
    """One event of the allocator: bytes handed out, negative where given back, and the innermost op that ran."""

    bytes: int
    op: str


@dataclass(frozen=True)
class CallWorkspace:
    """What one call of an op allocated and gave back before it returned, at most at a time."""

    op: str
    bytes: int


@dataclass(frozen=True)
class Allocated:
    """One forward and backward as the allocator saw it."""

    allocations: tuple[DeviceAllocation, ...]
    workspaces: tuple[CallWorkspace, ...]
    peak_bytes: int  # with inputs, all gradients and workspaces; without parameters and tables


def record_allocator(
    function: Callable[..., Any], inputs: Sequence[torch.Tensor], ops: Collection[str] = ()
) -> Allocated:
    """Run `function(*inputs)` on real CPU tensors in the surround of `measure.record`.

    ops  the ops that are one call for the dispatcher, as `Storage.op` names them; their workspaces are reported.
    """
    scalar, seed = torch.zeros(()), torch.zeros(())
    with _profiled() as profiler:
        loss = Tail.apply(scalar, *tensors_in(function(*inputs)))
        loss.backward(seed)
    events = _events(profiler, ops)
    held = sum(tensor.untyped_storage().nbytes() for tensor in inputs)
    return Allocated(
        allocations=tuple(DeviceAllocation(event.bytes, event.op) for event in events),
        workspaces=tuple(_workspaces(events)),
        peak_bytes=held + _peak(event.bytes for event in events),
    )


def allocator_peak(steps: Iterable[Callable[[], Any]]) -> int:
    """Most bytes that `steps`, run one after the other on real CPU tensors, have allocated at a time."""
    with _profiled() as profiler:
        for step in steps:
            step()
    return _peak(event.bytes for event in _events(profiler, ()))


def _profiled() -> profile:
    return profile(activities=[ProfilerActivity.CPU], profile_memory=True)


def _events(profiler: profile, ops: Collection[str]) -> list[_Event]:
    """Every allocation in the order of time."""
    assert profiler.profiler is not None
    assert profiler.profiler.kineto_results is not None
    roots = profiler.profiler.kineto_results.experimental_event_tree()
    return sorted(_allocations(roots, {f"aten::{op}" for op in ops}), key=lambda event: event.time)


_Call = tuple[int, str]  # the profiler's number for it, and the op


@dataclass(frozen=True)
class _Event:
    time: int
    bytes: int
    op: str
    call: _Call | None  # the outermost call of a named op that this is inside of


def _allocations(
    nodes: Sequence[Any], named: Collection[str], op: str = "", call: _Call | None = None
) -> Iterator[_Event]:
    """Every allocation in the profiler's tree, with its innermost op and the outermost call of a named one."""
    for node in nodes:
        if node.tag == _EventType.Allocation:
            if abs(node.extra_fields.alloc_size) > NUMBER_BYTES:
                yield _Event(node.start_time_ns, node.extra_fields.alloc_size, op, call)
            continue
        name = node.name.removeprefix("aten::")
        inner = (node.id, name) if call is None and node.name in named else call
        yield from _allocations(node.children, named, name, inner)


def _workspaces(events: Sequence[_Event]) -> Iterator[CallWorkspace]:
    """What each call of a named op used beyond what it left behind, in the order of the calls."""
    calls: dict[_Call, list[int]] = {}
    for event in events:
        if event.call is not None:
            calls.setdefault(event.call, []).append(event.bytes)
    for (_, op), sizes in calls.items():
        if _peak(sizes) > sum(sizes):
            yield CallWorkspace(op, _peak(sizes) - sum(sizes))


def _peak(changes: Iterable[int]) -> int:
    return max(accumulate(changes), default=0)
