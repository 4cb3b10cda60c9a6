"""Where the elements of a tensor lie: axes, strides, and when a reshape can be a view.

A stride is not a number but the sorted names of the dims inside it, so whether two axes merge is decided by names
alone and holds for every size. Dims of size one never decide anything, as in torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from mla_cost.dims import Atoms, Facts

Stride = Atoms | None  # None: an expanded axis, stride zero


class Axis(NamedTuple):
    """One dim of a tensor and the stride along it."""

    name: str
    stride: Stride


Axes = tuple[Axis, ...]


def names(axes: Iterable[Axis]) -> tuple[str, ...]:
    """The dims, in order."""
    return tuple(axis.name for axis in axes)


def contiguous(facts: Facts, dims: Sequence[str]) -> Axes:
    """Row-major axes: the last dim varies fastest."""
    axes: list[Axis] = []
    inner: Atoms = ()
    for name in reversed(dims):
        axes.append(Axis(name, inner))
        inner = _times(inner, facts.atoms(name))
    return tuple(reversed(axes))


def is_contiguous(facts: Facts, axes: Axes) -> bool:
    """Whether the elements lie row-major without gaps, as torch's is_contiguous."""
    inner: Atoms = ()
    for name, stride in reversed(axes):
        if facts.is_one(name):
            continue
        if stride != inner:
            return False
        inner = _times(inner, facts.atoms(name))
    return True


def is_dense(facts: Facts, axes: Axes) -> bool:
    """Whether the elements fill a storage without gaps or overlaps, in any order."""
    return is_contiguous(facts, tuple(axes[at] for at in _outer_first(facts, axes)))


def merges(facts: Facts, axes: Axes) -> bool:
    """Whether a view can make one dim of these neighbours."""
    inner: Axis | None = None
    for axis in reversed(axes):
        if facts.is_one(axis.name):
            continue
        if inner is not None and axis.stride != _span(facts, inner):
            return False
        inner = axis
    return True


def _span(facts: Facts, axis: Axis) -> Stride:
    return None if axis.stride is None else _times(axis.stride, facts.atoms(axis.name))


def can_view(facts: Facts, groups: Iterable[Axes]) -> bool:
    """Whether a reshape to one dim per group is a view, as torch's computeStride."""
    return all(merges(facts, group) for group in groups)


def like(facts: Facts, axes: Axes) -> Axes:
    """The axes of a new tensor made elementwise from this one: dense, in the same order of strides."""
    order = _outer_first(facts, axes)
    dense = contiguous(facts, [axes[at].name for at in order])
    return tuple(dense[order.index(at)] for at in range(len(axes)))


def _outer_first(facts: Facts, axes: Axes) -> list[int]:
    """Positions by falling stride. Dims of size one have no stride of their own and stay beside their neighbour."""
    keys: list[int] = []
    inner = 0
    for name, stride in reversed(axes):
        inner = inner if facts.is_one(name) else len(stride or ())
        keys.append(-inner)
    keys.reverse()
    return sorted(range(len(axes)), key=keys.__getitem__)


def unfolded(facts: Facts, axis: Axis, parts: Sequence[str]) -> Axes:
    """One axis seen as several, outermost first: n as (P, l)."""
    inner = axis.stride or ()
    axes: list[Axis] = []
    for name in reversed(parts):
        axes.append(Axis(name, inner))
        inner = _times(inner, facts.atoms(name))
    return tuple(reversed(axes))


def _times(left: Atoms, right: Atoms) -> Atoms:
    return tuple(sorted(left + right)) if right else left
