"""Ops that are one call for the dispatcher, whatever they compute inside.

`torch.library.custom_op` does the same, but its first call imports torch's compiler, a second in each rank process.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

LIBRARY = torch.library.Library("mla_reference", "FRAGMENT")


def opaque_op(schema: str, fake: Callable[..., Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorate a function as the op of that schema; `fake` gives its results' shapes and dtypes on fake tensors.

    The op has no derivative of its own: autograd functions call it, where no graph is built.
    """
    name = LIBRARY.define(schema)

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        LIBRARY.impl(name, function, "CompositeExplicitAutograd")
        torch.library.register_fake(f"{LIBRARY.ns}::{name}", fake, lib=LIBRARY)
        op: Callable[..., Any] = getattr(getattr(torch.ops, LIBRARY.ns), name).default
        return op

    return decorate
