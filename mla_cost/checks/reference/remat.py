"""Recomputation: a part keeps its arguments and runs again in backward, by torch's own `checkpoint`.

Which part a name of `Spec.remat` wraps is the table of docs/decisions/0009-recomputation.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from functools import partial

from torch import nn
from torch.utils.checkpoint import checkpoint

_running_again = ContextVar("running_again", default=False)


def is_recomputing() -> bool:
    """Whether a part made by `recomputed` is running again at this moment."""
    return _running_again.get()


@contextmanager
def _again() -> Iterator[None]:
    token = _running_again.set(True)
    try:
        yield
    finally:
        _running_again.reset(token)


def _contexts() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    """Around the part in forward, and around it when it runs again."""
    return nullcontext(), _again()


def recomputed(part: nn.Module) -> None:
    """Make every call of the module a checkpoint. Its parameters keep their names.

    Nothing here is random, so no generator's state is kept with the part.
    """
    part.forward = partial(  # type: ignore[method-assign]
        checkpoint, part.forward, use_reentrant=False, preserve_rng_state=False, context_fn=_contexts
    )
