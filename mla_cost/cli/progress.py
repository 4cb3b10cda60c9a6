"""What runs for more than a second says so: a bar on stderr, on a terminal only, gone when the work is done."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

Watch = Callable[[str, int, int], None]  # what is going on, how much of it is done, of how much

FIRST: Final = 1.0  # seconds without a word
EVERY: Final = 0.2


@contextmanager
def shown(words: str) -> Iterator[Watch]:
    """A bar while the work inside runs. words: what it is, until the work itself says more.

    A timer draws it in the main thread, so that no thread stands in the way of processes that the work forks.
    """
    here = threading.current_thread() is threading.main_thread()
    if not (here and hasattr(signal, "setitimer") and sys.stderr.isatty()):
        yield lambda _words, _done, _total: None
        return
    bar = _Bar(words)
    before = signal.signal(signal.SIGALRM, bar.draw)
    signal.setitimer(signal.ITIMER_REAL, FIRST, EVERY)
    try:
        yield bar.watch
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        bar.end()


class _Bar:
    def __init__(self, words: str) -> None:
        self.reported: tuple[str, int, int] = (words, 0, 0)
        self.bar: Any = None
        self.drawing = False

    def watch(self, words: str, done: int, total: int) -> None:
        """Keep what the work says for the next time it is drawn."""
        self.reported = (words, done, total)

    def draw(self, *_: Any) -> None:
        """Draw it, unless that is what the timer has interrupted."""
        if self.drawing:
            return
        self.drawing = True
        words, done, total = self.reported
        if self.bar is None:
            self.bar = _started(words)
        self.bar.update(self.bar.task_ids[0], description=words, completed=done, total=total or None)
        self.bar.refresh()
        self.drawing = False

    def end(self) -> None:
        """Take it off the terminal."""
        if self.bar is not None:
            self.bar.stop()


def _started(words: str) -> Any:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(20), TaskProgressColumn(), TimeElapsedColumn())
    found = Progress(*columns, console=Console(stderr=True), transient=True, auto_refresh=False)
    found.add_task(words, total=None)
    found.start()
    return found
