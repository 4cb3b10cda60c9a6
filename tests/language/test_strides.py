"""Strides by name against torch's strides by number, on random permuted, cut and expanded tensors."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from mla_cost.language.dims import Predicates
from mla_cost.language.strides import (
    Axes,
    Axis,
    can_view,
    contiguous,
    is_contiguous,
    is_dense,
    like,
    merges,
    names,
    unfolded,
)

torch: Any = pytest.importorskip("torch")

# A dim of each name has its own size, so that no two products of names agree by accident.
SIZES = {"a": 2, "c": 3, "d": 5, "e": 7}
CUT = 11  # a dim that has been cut is part of this many positions


@st.composite
def tensors(draw: st.DrawFn, expanded: bool = True) -> tuple[Predicates, Axes, Any]:
    """Predicates, axes by name and the same tensor in torch: some dims of size one, permuted, cut, some expanded."""
    dims = draw(st.lists(st.sampled_from(sorted(SIZES)), min_size=1, max_size=4, unique=True))
    predicates = Predicates(ones=frozenset(draw(st.sets(st.sampled_from(sorted(SIZES))))))
    cut = draw(st.sampled_from([None, *dims]))
    shape = [CUT if dim == cut else size(predicates, dim) for dim in dims]
    axes = list(contiguous(predicates, ["whole" if dim == cut else dim for dim in dims]))
    tensor = torch.zeros(shape)
    if cut is not None:
        at = dims.index(cut)
        axes[at] = Axis(cut, axes[at].stride)
        tensor = tensor.narrow(at, 0, size(predicates, cut))
    if expanded and draw(st.booleans()):
        at = draw(st.integers(0, len(axes)))
        axes.insert(at, Axis("x", None))
        tensor = tensor.unsqueeze(at).expand(*tensor.shape[:at], 4, *tensor.shape[at:])
    order = draw(st.permutations(range(len(axes))))
    return predicates, tuple(axes[at] for at in order), tensor.permute(order)


def size(predicates: Predicates, dim: str) -> int:
    return 1 if predicates.is_one(dim) else SIZES[dim]


def is_view(tensor: Any, shape: list[int]) -> bool:
    """Whether torch's reshape to this shape is a view."""
    return bool(tensor.reshape(shape).untyped_storage()._cdata == tensor.untyped_storage()._cdata)


def strides(predicates: Predicates, axes: Axes) -> list[int | None]:
    """Strides as numbers; None for a dim of size one, whose stride is nobody's business."""
    sizes = SIZES | {"x": 4, "whole": CUT}
    found: list[int | None] = []
    for name, stride in axes:
        number = 1 if stride is not None else 0
        for atom in stride or ():
            number *= sizes[atom]
        found.append(None if predicates.is_one(name) else number)
    return found


def strides_of(tensor: Any) -> list[int | None]:
    return [None if length == 1 else stride for length, stride in zip(tensor.shape, tensor.stride(), strict=True)]


@given(tensors())
def test_the_generator_makes_the_same_tensor_twice(drawn):
    predicates, axes, tensor = drawn
    assert strides(predicates, axes) == strides_of(tensor)


@given(tensors())
def test_is_contiguous(drawn):
    predicates, axes, tensor = drawn
    assert is_contiguous(predicates, axes) == tensor.is_contiguous()


@given(tensors())
def test_merges(drawn):
    predicates, axes, tensor = drawn
    assert merges(predicates, axes) == is_view(tensor, [-1])


@given(tensors(), st.data())
def test_can_view(drawn, data):
    predicates, axes, tensor = drawn
    bounds = sorted(data.draw(st.sets(st.integers(1, len(axes)), max_size=3)) | {0, len(axes)})
    spans = list(pairwise(bounds))
    shape = [tensor.shape[first:last].numel() for first, last in spans]
    assert can_view(predicates, [axes[first:last] for first, last in spans]) == is_view(tensor, shape)


@given(tensors())
def test_like_is_what_torch_makes_elementwise(drawn):
    """Beside an expanded dim, torch also heeds the strides that dims of size one happen to have: these have no name."""
    predicates, axes, tensor = drawn
    assume(predicates.ones.isdisjoint(names(axes)) or "x" not in names(axes))
    assert names(like(predicates, axes)) == names(axes)
    assert strides(predicates, like(predicates, axes)) == strides_of(tensor * 2)


@given(tensors(expanded=False), st.data())
def test_like_of_two_operands(drawn, data):
    """The second has a say only where a dim of the first is broadcast; dims of size one as above."""
    predicates, axes, tensor = drawn
    assume(predicates.ones.isdisjoint(names(axes)))
    order = data.draw(st.permutations(range(len(axes))))
    back = [order.index(at) for at in range(len(order))]
    dense = contiguous(predicates, [axes[at].name for at in order])
    second = torch.empty([tensor.shape[at] for at in order]).permute(back)
    broadcast = data.draw(st.sets(st.integers(0, len(axes) - 1)))
    first = tuple(Axis(axis.name, None) if at in broadcast else axis for at, axis in enumerate(axes))
    for at in broadcast:
        tensor = tensor.narrow(at, 0, 1)
    ours = like(predicates, first, tuple(dense[at] for at in back))
    assert strides(predicates, ours) == strides_of(tensor * second)


@given(tensors())
def test_is_dense(drawn):
    predicates, axes, tensor = drawn
    assert is_dense(predicates, axes) == torch.ops.aten.is_non_overlapping_and_dense(tensor)


@given(tensors(expanded=False), st.data())
def test_unfolded(drawn, data):
    """A dim seen as two keeps its stride inside and multiplies it outside."""
    predicates, axes, tensor = drawn
    at = data.draw(st.integers(0, len(axes) - 1))
    predicates = Predicates(ones=predicates.ones | {"one"})
    parts = unfolded(predicates, axes[at], (axes[at].name, "one"))
    assert strides(predicates, (*axes[:at], *parts, *axes[at + 1 :])) == strides_of(tensor.unsqueeze(at + 1))


def test_heads_seen_as_ranks_and_local_heads():
    predicates = Predicates()
    n = contiguous(predicates, ("s", "n", "v"))[1]
    assert unfolded(predicates, n, ("P", "l")) == (Axis("P", ("l", "v")), Axis("l", ("v",)))
    one_head = Predicates(ones=frozenset({"l"}))
    assert unfolded(one_head, contiguous(one_head, ("s", "n", "v"))[1], ("P", "l"))[0] == Axis("P", ("v",))


def test_sequence_and_heads_are_products_of_what_is_local():
    """[P s] merges to S, and P of the sequence does not merge with l of the heads."""
    predicates = Predicates()
    received = contiguous(predicates, ("P", "s", "b", "l", "v"))
    assert merges(predicates, received[:2])
    assert not merges(predicates, (received[0], received[3]))
    assert names(contiguous(predicates, ("S", "b"))) == ("S", "b")
    assert contiguous(predicates, ("b", "S"))[0].stride == ("P", "s")
