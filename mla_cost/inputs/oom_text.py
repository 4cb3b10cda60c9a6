"""The text of an out-of-memory error, read into bytes.

Messages: pytorch c10/cuda/CUDACachingAllocator.cpp (CUDA and, hipified, ROCm: "HIP out of memory"; with brackets before
2.1), Ascend/pytorch torch_npu/csrc/core/npu/NPUCachingAllocator.cpp (torch_npu, with brackets). All print sizes with
two decimals, so a figure holds to half a hundredth of its unit.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from mla_cost.errors import InputError
from mla_cost.language.numbers import round_up

_UNITS: Final = {"bytes": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
_SIZE: Final = r"(\d{1,9}(?:\.\d{1,4})?) ?(bytes|KiB|MiB|GiB)"
_PATTERNS: Final = {
    "tried": (rf"[Tt]ried to allocate\s+{_SIZE}",),
    "total": (rf"total capac?i?ty of\s+{_SIZE}", rf"{_SIZE}\s+total capacity"),
    "free": (rf"of which\s+{_SIZE}\s+is free", rf"{_SIZE}\s+free"),
    "allocated": (rf"{_SIZE}\s+is allocated by PyTorch", rf"{_SIZE}\s+already allocated"),
    "unallocated": (rf"{_SIZE}\s+is reserved by PyTorch but unallocated",),
    "reserved": (rf"{_SIZE}\s+reserved in total by PyTorch",),
}
_FAMILIES: Final = (("NPU out of memory", "ascend"), ("HIP out of memory", "rocm"), ("CUDA out of memory", "cuda"))
# get_allocation_size of both allocators: at most 1 MiB comes from a buffer of 2, below 10 MiB from one of 20, the
# rest in multiples of 2
_SMALL, _SMALL_BUFFER, _LARGE, _LARGE_BUFFER, _STEP = 2**20, 2 * 2**20, 10 * 2**20, 20 * 2**20, 2 * 2**20


class OutOfMemory(NamedTuple):
    """What a message says, in bytes as far as its two decimals go. unallocated: reserved by torch and not allocated.

    outside: of the device's total neither free nor torch's: contexts, communication buffers, other processes.
    tried_low, tried_high: what rounds to the size that was printed.
    """

    family: str
    tried: int
    tried_low: int
    tried_high: int
    total: int
    free: int
    allocated: int
    unallocated: int

    @property
    def outside(self) -> int:
        """Neither free nor torch's."""
        return max(0, self.total - self.free - self.allocated - self.unallocated)

    def asked_for(self, size: int) -> bool:
        """Whether a tensor of so many bytes may have printed this size: its own, or that of the segment for it."""
        return any(self.tried_low <= each <= self.tried_high for each in (size, segment(size)))


def segment(size: int) -> int:
    """What the allocator asks the device for, to hold a tensor of so many bytes."""
    if size <= _SMALL:
        return _SMALL_BUFFER
    return _LARGE_BUFFER if size < _LARGE else round_up(size, _STEP)


def read(text: str, file: str | None = None) -> OutOfMemory:
    """The last out-of-memory error in a text, such as a log.

    Raises:
        InputError: none, or one without the figures of a device.

    """
    start = max((text.rfind(words) for words, _ in _FAMILIES), default=-1)
    if start < 0:
        allowed = ", ".join(f"'{words}. Tried to allocate ...'" for words, _ in _FAMILIES)
        raise InputError("no out-of-memory error of torch in this text", file=file, allowed=allowed)
    message = " ".join(text[start : start + 4000].split())
    family = next(name for words, name in _FAMILIES if message.startswith(words))
    found = {name: _size(message, patterns) for name, patterns in _PATTERNS.items()}
    missing = [name for name in ("tried", "total", "free", "allocated") if found[name] is None]
    if missing:
        raise InputError(f"the error does not say what was {' and '.join(missing)}", file=file)
    bytes_of = {name: each[0] if each else 0 for name, each in found.items()}
    unallocated = bytes_of["unallocated"] or max(0, bytes_of["reserved"] - bytes_of["allocated"])
    tried, half = found["tried"] or (0, 0)
    return OutOfMemory(
        family,
        tried,
        tried - half,
        tried + half,
        bytes_of["total"],
        bytes_of["free"],
        bytes_of["allocated"],
        unallocated,
    )


def _size(message: str, patterns: tuple[str, ...]) -> tuple[int, int] | None:
    """A size in bytes, and half of the last decimal that is printed of it."""
    for pattern in patterns:
        match = re.search(pattern, message)
        if match is not None:
            unit = _UNITS[match[2]]
            decimals = len(match[1].partition(".")[2])
            return round(float(match[1]) * unit), unit // (2 * 10**decimals) if unit > 1 else 0
    return None
