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
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from multiprocessing.connection import Pipe, wait
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from mla_cost.language.numbers import ceil_divide

TASKS: Final = 32  # per worker: small enough to even out, few enough for a pipe to hold
running: set[int] = set()  # processes that work for this one now, for whoever has to end them early
POLL: Final = 0.2  # seconds between two looks at how far others are
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
    with _tokens(count, workers, together) as tokens, _ended() as team:
        for _ in range(workers - 1):
            team.start(lambda: _serve(work, tokens))
        _serve(work, tokens)
    return not team.failed


def answers(work: Callable[[int], Any], count: int, workers: int, watch: Callable[[], None]) -> list[Any] | None:
    """What the work answers to every number below count, by forked processes; None where one of them failed.

    watch: called again and again meanwhile.
    """
    found: dict[int, Any] = {}
    with _tokens(count, workers) as tokens, _ended() as team:
        waited: list[Any] = []
        for _ in range(workers):
            reading, writing = Pipe(duplex=False)
            team.start(partial(_serve, partial(_answer, work, writing), tokens))
            writing.close()  # so that the end of the child is the end of the pipe
            waited.append(reading)
        while waited:
            ready: Any
            for ready in wait(waited, timeout=POLL):
                try:
                    number, answer = ready.recv()
                    found[number] = answer
                except EOFError:
                    waited.remove(ready)
            watch()
    return None if team.failed else [found[number] for number in range(count)]


def _answer(work: Callable[[int], Any], to: Any, numbers: range) -> None:
    for number in numbers:
        to.send((number, work(number)))


class _Team:
    """Processes that this one forked."""

    def __init__(self) -> None:
        self.children: list[int] = []
        self.failed = False

    def start(self, work: Callable[[], None]) -> None:
        """Fork one that does the work and ends."""
        self.children.append(_fork(work))
        running.add(self.children[-1])


@contextmanager
def _ended() -> Iterator[_Team]:
    """A team whose members have ended afterwards: by themselves, or killed where this process fails."""
    team = _Team()
    try:
        yield team
    except BaseException:
        for child in team.children:  # nobody wants their work any more
            os.kill(child, signal.SIGKILL)
        raise
    finally:
        codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in team.children]
        running.difference_update(team.children)
        team.failed = any(codes)


@contextmanager
def _tokens(count: int, workers: int, together: int = 1) -> Iterator[int]:
    """The read end of a pipe that holds every run of tasks; whoever reads one does it."""
    reading, writing = os.pipe()
    step = together * max(1, ceil_divide(count, TASKS * workers * together))
    for start in range(0, count, step):
        os.write(writing, _TOKEN.pack(start, min(start + step, count)))
    os.close(writing)
    try:
        yield reading
    finally:
        os.close(reading)


def _serve(work: Callable[[range], None], tokens: int) -> None:
    while token := os.read(tokens, _TOKEN.size):
        work(range(*_TOKEN.unpack(token)))


def _fork(work: Callable[[], None]) -> int:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # a BLAS has threads, which survive a fork by its own care
        child = os.fork()
    if child:
        return child
    code = 1
    try:
        work()
        code = 0
    finally:
        os._exit(code)
