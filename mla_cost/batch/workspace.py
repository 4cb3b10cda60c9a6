"""What a fused kernel holds inside its backward, at many points: the kernel's own function on whole arrays."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from types import FunctionType
from typing import Any

import numpy as np

from mla_cost.language.dims import Facts
from mla_cost.language.machine import FusedCall
from mla_cost.language.program import FusedShape, Kernel
from mla_cost.pricing.block import fused_shape


def fused_workspace(kernel: Kernel, facts: Facts, call: FusedCall, values: dict[str, Any]) -> Any:
    """Bytes at every point, exact below 2^53 as every other size.

    A function that adds, multiplies and rounds up takes whole arrays; one that branches or calls others is asked for
    each distinct shape.
    """
    shape: Any = fused_shape(facts, call, values)  # of arrays where points differ
    arrays = [field for field in shape if isinstance(field, np.ndarray)]
    if not arrays:
        return float(kernel.workspace(FusedShape(*map(int, shape))))
    size = arrays[0].shape
    try:
        if not isinstance(shape.qk, np.ndarray) and not isinstance(shape.v, np.ndarray):
            return _elementwise(kernel.workspace)(shape)
        return _by_widths(kernel, shape, size)
    except (TypeError, ValueError):  # a branch on many values, or a helper that takes one
        return _one_by_one(kernel, shape, size)


def _one_by_one(kernel: Kernel, shape: Any, size: tuple[int, ...]) -> Any:
    every = np.stack([np.broadcast_to(field, size) for field in shape])
    shapes, which = np.unique(every, axis=1, return_inverse=True)
    each = [kernel.workspace(FusedShape(*map(int, one))) for one in shapes.T.tolist()]
    return np.array(each, np.float64)[which.ravel()]


def _by_widths(kernel: Kernel, shape: Any, size: tuple[int, ...]) -> Any:
    """Kernels ask which width they have, so points are taken width by width."""
    every: Any = (np.broadcast_to(field, size) for field in shape)
    full: Any = FusedShape(*every)
    found = np.empty(size)
    pairs, which = np.unique(np.stack([full.qk, full.v]), axis=1, return_inverse=True)
    for at, (qk, v) in enumerate(pairs.T.tolist()):
        mine = np.flatnonzero(which.ravel() == at)
        own = full._replace(**{name: value[mine] for name, value in full._asdict().items()})
        found[mine] = _elementwise(kernel.workspace)(own._replace(qk=int(qk), v=int(v)))
    return found


@cache
def _elementwise(written: Callable[[FusedShape], int]) -> Callable[[Any], Any]:
    """A kernel's function with `max` and `min` that compare array with array."""
    if not isinstance(written, FunctionType) or written.__closure__:
        raise TypeError("only a plain function takes arrays")
    return FunctionType(written.__code__, {**written.__globals__, "max": _largest, "min": _smallest})


def _largest(first: Any, second: Any) -> Any:
    return (
        np.maximum(first, second)
        if isinstance(first, np.ndarray) or isinstance(second, np.ndarray)
        else max(first, second)
    )


def _smallest(first: Any, second: Any) -> Any:
    return (
        np.minimum(first, second)
        if isinstance(first, np.ndarray) or isinstance(second, np.ndarray)
        else min(first, second)
    )
