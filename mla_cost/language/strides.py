"""Where the elements of a tensor lie: axes, strides, and when a reshape can be a view.

A stride is not a number but the sorted names of the dims inside it, so whether two axes merge is decided by names
alone and holds for every size. Dims of size one never decide anything, as in torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mla_cost.language.dims import Atoms, Axes, Axis, Predicates, Stride

__all__ = ["Axes", "Axis", "can_view", "contiguous", "is_contiguous", "is_dense", "like", "merges", "names", "unfolded"]


def names(axes: Iterable[Axis]) -> tuple[str, ...]:
    """The dims, in order."""
    return tuple([axis.name for axis in axes])


def contiguous(predicates: Predicates, dims: Sequence[str]) -> Axes:
    """Row-major axes: the last dim varies fastest."""
    return predicates.row_major(tuple(dims))


def is_contiguous(predicates: Predicates, axes: Axes) -> bool:
    """Whether the elements lie row-major without gaps, as torch's is_contiguous."""
    inner: Atoms = ()
    for name, stride in reversed(axes):
        if predicates.is_one(name):
            continue
        if stride != inner:
            return False
        inner = _times(inner, predicates.atoms(name))
    return True


def is_dense(predicates: Predicates, axes: Axes) -> bool:
    """Whether the elements fill a storage without gaps or overlaps, in any order."""
    return is_contiguous(predicates, tuple(axes[at] for at in _outer_first(predicates, axes)))


def merges(predicates: Predicates, axes: Axes) -> bool:
    """Whether a view can make one dim of these neighbours."""
    inner: Axis | None = None
    for axis in reversed(axes):
        if predicates.is_one(axis.name):
            continue
        if inner is not None and axis.stride != _span(predicates, inner):
            return False
        inner = axis
    return True


def _span(predicates: Predicates, axis: Axis) -> Stride:
    return None if axis.stride is None else _times(axis.stride, predicates.atoms(axis.name))


def can_view(predicates: Predicates, groups: Iterable[Axes]) -> bool:
    """Whether a reshape to one dim per group is a view, as torch's computeStride."""
    return all(merges(predicates, group) for group in groups)


def like(predicates: Predicates, *operands: Axes) -> Axes:
    """The axes of a new tensor made elementwise from these: dense, in the same order of strides.

    The operands have the same dims; a broadcast one has stride None there. Where the first has no say, the next has.
    """
    found = predicates.alike.get(operands)
    if found is None:
        order = _outer_first(predicates, *operands)
        dense = contiguous(predicates, [operands[0][at].name for at in order])
        found = predicates.alike[operands] = tuple(dense[order.index(at)] for at in range(len(order)))
    return found


def _outer_first(predicates: Predicates, *operands: Axes) -> list[int]:
    """Positions by falling stride: torch's TensorIterator::reorder_dimensions, an insertion sort that knows ties."""
    order = list(range(len(operands[0])))[::-1]
    for start in range(1, len(order)):
        moving = start
        for other in range(start - 1, -1, -1):
            inner_first = _compared(predicates, operands, order[other], order[moving])
            if inner_first < 0:
                break
            if inner_first > 0:
                order[other], order[moving] = order[moving], order[other]
                moving = other
    return order[::-1]


def _compared(predicates: Predicates, operands: Iterable[Axes], left: int, right: int) -> int:
    """Which stride is longer, by the first operand where both are known; 0 where none tells."""
    for axes in operands:
        first, second = axes[left], axes[right]
        if (
            first.stride is None
            or second.stride is None
            or predicates.is_one(first.name)
            or predicates.is_one(second.name)
        ):
            continue
        if len(first.stride) != len(second.stride):
            return len(first.stride) - len(second.stride)
    return 0


def unfolded(predicates: Predicates, axis: Axis, parts: Sequence[str]) -> Axes:
    """One axis seen as several, outermost first: n as (P, l)."""
    inner = axis.stride or ()
    axes: list[Axis] = []
    for name in reversed(parts):
        axes.append(Axis(name, inner))
        inner = _times(inner, predicates.atoms(name))
    return tuple(reversed(axes))


def _times(left: Atoms, right: Atoms) -> Atoms:
    return tuple(sorted(left + right)) if right else left
