"""Work in order on an executor that somebody else runs: processes of this machine, or dask's, Ray's and mpi4py's.

A task that is lost with its worker is handed out again; what an executor can no longer do is done here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, CancelledError
from typing import Any, Final, Protocol

from mla_cost.errors import InputError, install

IN_FLIGHT: Final = 64  # tasks handed out at once: what waits to be taken in order stays in memory
TRIES: Final = 3


class FutureAnswer(Protocol):
    """What an executor promises: `concurrent.futures.Future`, or dask's."""

    def result(self) -> Any: ...
    def cancel(self) -> Any: ...


class TaskExecutor(Protocol):
    """All that is asked of an executor: that of `concurrent.futures.Executor`."""

    def submit(self, function: Callable[..., Any], /, *arguments: Any) -> FutureAnswer: ...


def in_order(executor: TaskExecutor, function: Callable[..., Any], tasks: Sequence[tuple[Any, ...]]) -> Iterator[Any]:
    """What a function answers to each task, in their order. It and all arguments travel, so they have to pickle."""
    waiting: deque[tuple[tuple[Any, ...], FutureAnswer | None]] = deque()
    left = iter(tasks)
    try:
        for task in left:
            waiting.append((task, _handed(executor, function, task)))
            if len(waiting) >= IN_FLIGHT:
                yield _taken(executor, function, *waiting.popleft())
        while waiting:
            yield _taken(executor, function, *waiting.popleft())
    finally:
        for _, future in waiting:
            if future is not None:
                future.cancel()


def _handed(executor: TaskExecutor, function: Callable[..., Any], task: tuple[Any, ...]) -> FutureAnswer | None:
    """A promise; None from an executor that has broken, or is shut down."""
    try:
        return executor.submit(function, *task)
    except (BrokenExecutor, RuntimeError):
        return None


def _taken(
    executor: TaskExecutor, function: Callable[..., Any], task: tuple[Any, ...], future: FutureAnswer | None
) -> Any:
    for _ in range(TRIES):
        if future is None:
            break
        try:
            return future.result()
        except Exception as error:
            if not _lost(error):
                raise
            future = _handed(executor, function, task)
    return function(*task)


def _lost(error: Exception) -> bool:
    """Whether the worker went, rather than the work: what executors raise has names of their own."""
    return isinstance(error, BrokenExecutor | CancelledError | ConnectionError) or type(error).__name__ in {
        "KilledWorker", "WorkerCrashedError", "NodeDiedError", "FutureCancelledError",
    }  # fmt: skip


def require_executor(executor: Any) -> None:
    """Refuse what is no executor.

    Raises:
        InputError: it cannot be handed work.

    """
    if executor is not None and not callable(getattr(executor, "submit", None)):
        allowed = "a concurrent.futures.Executor, or what has its submit"
        raise InputError("cannot be handed work", field="executor", value=type(executor).__name__, allowed=allowed)


def dask_executor(address: str) -> TaskExecutor:
    """The workers of a dask scheduler.

    Raises:
        InputError: no dask is installed, or nobody answers at the address.

    """
    try:
        from distributed import Client
    except ImportError:
        raise InputError(f"needs dask; install it: {install('dask')}", field="--dask") from None
    try:
        executor: TaskExecutor = Client(address, timeout=10).get_executor(retries=TRIES, pure=False)
    except (OSError, ValueError, TypeError) as error:
        raise InputError(f"no dask scheduler answers: {error}", field="--dask", value=address,
                         allowed="the address of one, such as tcp://10.0.0.1:8786") from None  # fmt: skip
    return executor
