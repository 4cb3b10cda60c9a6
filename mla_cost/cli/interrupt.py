"""Ctrl-C: an end at once with exit code 130, the terminal as it was, and no noise."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

EXIT: Final = 130  # 128 and the signal's number, as shells have it
_CLEAR: Final = b"\r\x1b[2K\x1b[?25h"  # the line of a progress bar goes, the cursor comes back


def install(instead_of: Callable[..., object] = signal.default_int_handler) -> None:
    """Let Ctrl-C end the process from now on; not where the caller ignores it, nor in a thread of a larger program.

    The handler ends the process instead of raising: an exception could surface inside a destructor, where Python prints
    it and goes on, or wait for work that nobody wants any more. instead_of: a handler of our own that stood in until
    now.
    """
    main = threading.current_thread() is threading.main_thread()
    if main and signal.getsignal(signal.SIGINT) in {signal.default_int_handler, instead_of}:
        signal.signal(signal.SIGINT, _Stop(os.getpid()))


class _Stop:
    def __init__(self, owner: int) -> None:
        self.owner = owner

    def __call__(self, *_: Any) -> None:
        if os.getpid() == self.owner:  # not in a process that this one forked
            end_children()
            if os.isatty(2):
                os.write(2, _CLEAR)
        os._exit(EXIT)


def end_children() -> None:
    """End the processes that share the work, of those modules only that were ever imported."""
    cores, processes = sys.modules.get("mla_cost.batch.cores"), sys.modules.get("multiprocessing.process")
    own = list(cores.running) if cores is not None else []
    own += [child.pid for child in processes.active_children()] if processes is not None else []
    for child in own:
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)


@contextmanager
def raised() -> Iterator[None]:
    """Where Ctrl-C has something to close first: it raises KeyboardInterrupt inside."""
    before = signal.getsignal(signal.SIGINT)
    if not isinstance(before, _Stop):
        yield
        return
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
