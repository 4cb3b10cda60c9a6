"""Work on all cores, in forked processes that write into memory they share.

Threads of Python do not help here: between two numpy calls of some ten microseconds the interpreter's lock changes
hands, which takes longer than the call (docs/decisions/0010).
"""

from __future__ import annotations

import mmap
import os
import signal
import struct
import warnings
from collections.abc import Callable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

TASKS: Final = 32  # per worker: small enough to even out, few enough for a pipe to hold
running: set[int] = set()  # processes that work for this one now, for whoever has to end them early
_TOKEN: Final = struct.Struct("=II")


def available() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def can_fork() -> bool:
    """Whether processes can be forked here; macOS can, but its libraries do not survive it."""
    return hasattr(os, "fork") and os.uname().sysname == "Linux"


def shared(count: int, dtype: str) -> NDArray[Any]:
    """An array of zeros that forked processes see too. It lives as long as the array."""
    size = np.dtype(dtype).itemsize * count
    return np.frombuffer(mmap.mmap(-1, max(size, 1)), dtype, count)


def forked(work: Callable[[range], None], count: int, workers: int, together: int = 1) -> bool:
    """Do the work for all of range(count) in this process and in forked ones; whether none of them failed.

    together: runs of so many are done by one of them.
    """
    tokens = _tokens(count, workers, together)
    children: list[int] = []
    try:
        while len(children) < workers - 1:
            children.append(_fork(work, tokens))
            running.add(children[-1])
        _serve(work, tokens)
    except BaseException:
        for child in children:  # nobody wants their work any more
            os.kill(child, signal.SIGKILL)
        raise
    finally:
        os.close(tokens)
        ended = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
        running.difference_update(children)
    return not any(ended)


def _tokens(count: int, workers: int, together: int) -> int:
    """The read end of a pipe that holds every run of tasks; whoever reads one does it."""
    reading, writing = os.pipe()
    step = together * max(1, -(-count // (TASKS * workers * together)))
    for start in range(0, count, step):
        os.write(writing, _TOKEN.pack(start, min(start + step, count)))
    os.close(writing)
    return reading


def _serve(work: Callable[[range], None], tokens: int) -> None:
    while token := os.read(tokens, _TOKEN.size):
        work(range(*_TOKEN.unpack(token)))


def _fork(work: Callable[[range], None], tokens: int) -> int:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # a BLAS has threads, which survive a fork by its own care
        child = os.fork()
    if child:
        return child
    code = 1
    try:
        _serve(work, tokens)
        code = 0
    finally:
        os._exit(code)
