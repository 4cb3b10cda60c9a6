"""Memory snapshots of torch: `torch.cuda.memory._dump_snapshot`, read, and a timeline written in the same format.

The format: pytorch torch/csrc/cuda/memory_snapshot.cpp and torch/cuda/_memory_viz.py (`segments` with blocks, one list
of `device_traces` a device: alloc, free_requested, free_completed, segment_alloc, ...; frames innermost first).
"""

from __future__ import annotations

import pickle  # written only; `plain_pickle` reads
import stat
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

from mla_cost.errors import InputError
from mla_cost.inputs.plain_pickle import loads
from mla_cost.language.numbers import round_up

MAX_BYTES: Final = 2**29
_MOST_EVENTS: Final = 5_000_000
_MOST_FRAMES: Final = 8
_ROUNDED: Final = 512  # the allocator's smallest step: kMinBlockSize of c10/cuda/CUDACachingAllocator.h
_BASE: Final = 0x7F00_0000_0000
_OWN: Final = ("memory.py", "_memory_viz.py", "CUDACachingAllocator")


class SnapshotStorage(NamedTuple):
    """One allocation of a recorded timeline. Bytes. made, freed: places among the events, None where outside."""

    bytes: int
    made: int | None
    freed: int | None
    frames: tuple[str, ...]


class Recorded(NamedTuple):
    """What a snapshot says. peak: most that was allocated at once, base: of it from before the recording.

    reserved, allocated: of the device's segments when the snapshot was taken.
    """

    storages: tuple[SnapshotStorage, ...]
    peak: int
    base: int
    reserved: int
    allocated: int

    @property
    def fragmentation(self) -> int:
        """Reserved and not allocated when the snapshot was taken."""
        return self.reserved - self.allocated


def rounded(size: int) -> int:
    """A size as the allocator hands it out."""
    return round_up(size, _ROUNDED)


def read(file: str) -> Recorded:
    """A snapshot file.

    Raises:
        InputError: no such file, one that is too large, that asks for more than plain values, or that is no snapshot.

    """
    path = Path(file)
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise InputError("not a regular file", file=file)
        if status.st_size > MAX_BYTES:
            raise InputError(f"the file has {status.st_size:,} bytes", file=file, allowed=f"at most {MAX_BYTES:,}")
        data = path.read_bytes()
    except OSError as error:
        raise InputError(f"cannot be read ({error.strerror})", file=file) from None
    return recorded(loads(data, file), file)


def recorded(snapshot: Any, file: str) -> Recorded:
    """What the dict of a snapshot says.

    Raises:
        InputError: what is no snapshot.

    """
    traces, segments = (_list(snapshot, key, file) for key in ("device_traces", "segments"))
    events = max((trace for trace in traces if isinstance(trace, list)), key=len, default=[])
    if len(events) > _MOST_EVENTS or len(segments) > _MOST_EVENTS:
        raise InputError("more events than are read", file=file, allowed=f"at most {_MOST_EVENTS:,}")
    storages, most, last = _timeline(events, file)
    reserved = sum(_number(each, "total_size", file) for each in segments)
    allocated = sum(_number(each, "allocated_size", file) for each in segments)
    base = max(0, allocated - last)
    return Recorded(tuple(storages), base + most, base, reserved, allocated)


def _list(snapshot: Any, key: str, file: str) -> list[Any]:
    found = snapshot.get(key) if isinstance(snapshot, dict) else None
    if not isinstance(found, list):
        raise InputError("not a memory snapshot of torch", file=file, field=key, allowed="what _dump_snapshot writes")
    return found


def _number(entry: Any, key: str, file: str) -> int:
    value = entry.get(key) if isinstance(entry, dict) else None
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**60:
        raise InputError("must be a number of bytes", file=file, field=key, value=value)
    return value


def _timeline(events: Sequence[Any], file: str) -> tuple[list[SnapshotStorage], int, int]:
    """The storages of a trace, the most and the last that lived beyond what lived when it began."""
    alive: dict[int, int] = {}
    found: list[SnapshotStorage] = []
    now, most = 0, 0
    for place, event in enumerate(events):
        action = event.get("action") if isinstance(event, dict) else None
        if action == "alloc":
            size = rounded(_number(event, "size", file))
            alive[_number(event, "addr", file)] = len(found)
            found.append(SnapshotStorage(size, place, None, _frames(event)))
            now += size
            most = max(most, now)
        elif action == "free_completed":
            at = alive.pop(_number(event, "addr", file), None)
            if at is None:  # made before the trace began
                found.append(SnapshotStorage(rounded(_number(event, "size", file)), None, place, _frames(event)))
                now -= found[-1].bytes
            else:
                found[at] = found[at]._replace(freed=place)
                now -= found[at].bytes
    return found, most, now


def _frames(event: Mapping[str, Any]) -> tuple[str, ...]:
    """The innermost frames that are not the allocator's, as `file:line function`."""
    given = event.get("frames")
    kept = []
    for frame in given[:64] if isinstance(given, list) else ():
        if isinstance(frame, dict):
            name = Path(str(frame.get("filename", ""))[:200]).name
            if not name.endswith(_OWN):
                kept.append(f"{name}:{str(frame.get('line', ''))[:8]} {str(frame.get('name', ''))[:80]}".strip())
    return tuple(kept[:_MOST_FRAMES])


# ---- written


class SnapshotStep(Protocol):
    """A moment of a timeline to write: `alloc` or `free` of storage `key`. frames: innermost first."""

    @property
    def action(self) -> str: ...
    @property
    def key(self) -> int: ...
    @property
    def bytes(self) -> int: ...
    @property
    def frames(self) -> tuple[str, ...]: ...


def snapshot_of(steps: Sequence[SnapshotStep]) -> dict[str, Any]:
    """A timeline as the dict that `_dump_snapshot` pickles: one device, one segment, every storage with its address."""
    addresses, top = _addresses(steps)
    trace: list[dict[str, Any]] = [_event("segment_alloc", _BASE, max(top, _ROUNDED), (), 0)]
    alive: dict[int, SnapshotStep] = {}
    for time, step in enumerate(steps, 1):
        place, size = addresses[step.key], rounded(step.bytes)
        if step.action == "alloc":
            alive[step.key] = step
            trace.append(_event("alloc", place, size, step.frames, time))
        else:
            alive.pop(step.key, None)
            trace += [_event(action, place, size, step.frames, time) for action in ("free_requested", "free_completed")]
    blocks = [*_blocks(alive.values(), addresses, max(top, _ROUNDED))]
    held = sum(block["size"] for block in blocks if block["state"] == "active_allocated")
    segment = {
        "device": 0, "address": _BASE, "total_size": max(top, _ROUNDED), "allocated_size": held, "active_size": held,
        "requested_size": held, "stream": 0, "segment_type": "large", "segment_pool_id": (0, 0),
        "is_expandable": False, "frames": [], "blocks": blocks,
    }  # fmt: skip
    return {
        "segments": [segment], "device_traces": [trace], "external_annotations": [],
        "allocator_settings": {"PYTORCH_CUDA_ALLOC_CONF": "", "expandable_segments": False},
    }  # fmt: skip


def _addresses(steps: Sequence[SnapshotStep]) -> tuple[dict[int, int], int]:
    """A place for each storage, the first gap that holds it, and the end of the last."""
    free: list[tuple[int, int]] = []  # (start, size), apart and in order
    found: dict[int, int] = {}
    top = 0
    for step in steps:
        size = rounded(step.bytes)
        if step.action == "free":
            free = _joined([*free, (found[step.key] - _BASE, size)])
            continue
        gap = next((each for each in free if each[1] >= size), None)
        if gap is None:
            found[step.key], top = _BASE + top, top + size
            continue
        found[step.key] = _BASE + gap[0]
        rest = (gap[0] + size, gap[1] - size)
        free = [each for each in free if each != gap] + ([rest] if rest[1] else [])
    return found, top


def _joined(free: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Gaps that touch, as one."""
    done: list[tuple[int, int]] = []
    for start, size in sorted(free):
        if done and sum(done[-1]) == start:
            done[-1] = (done[-1][0], done[-1][1] + size)
        else:
            done.append((start, size))
    return done


def _blocks(alive: Any, addresses: Mapping[int, int], top: int) -> Iterator[dict[str, Any]]:
    """The blocks of the segment when the timeline ends, gaps as inactive ones."""
    place = _BASE
    for step in sorted(alive, key=lambda step: addresses[step.key]):
        start, size = addresses[step.key], rounded(step.bytes)
        if start > place:
            yield _block(place, start - place, (), state="inactive")
        yield _block(start, size, step.frames)
        place = start + size
    if place < _BASE + top:
        yield _block(place, _BASE + top - place, (), state="inactive")


def _block(place: int, size: int, frames: tuple[str, ...], state: str = "active_allocated") -> dict[str, Any]:
    return {"address": place, "size": size, "requested_size": size, "state": state, "frames": _as_frames(frames)}


def _event(action: str, place: int, size: int, frames: tuple[str, ...], time: int) -> dict[str, Any]:
    return {"action": action, "addr": place, "size": size, "stream": 0, "time_us": time, "frames": _as_frames(frames)}


def _as_frames(frames: tuple[str, ...]) -> list[dict[str, Any]]:
    return [{"filename": "mla-cost", "line": 0, "name": name} for name in frames]


def write(path: Path, steps: Sequence[SnapshotStep]) -> None:
    """Write a timeline as a snapshot, whole or not at all.

    Raises:
        InputError: where it cannot be written.

    """
    part = path.with_name(f".{path.name}.part")
    try:
        part.write_bytes(pickle.dumps(snapshot_of(steps), protocol=4))
        part.replace(path)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise InputError(f"cannot be written ({error.strerror})", file=str(path)) from None
