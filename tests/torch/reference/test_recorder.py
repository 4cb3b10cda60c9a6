"""The recorder on cases small enough to write the whole timeline by hand, on real and on fake tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext

import pytest

pytest.importorskip("torch")

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.functional import linear
from torch.utils.checkpoint import checkpoint

from mla_cost.checks.reference import Recording, record, saved_storages

X = 4 * 2 * 8 * 4  # bytes of the input [4 2 8], fp32: the unit of the cases below
HALF = X // 2


@pytest.fixture(params=["real", "fake"], autouse=True)
def mode(request: pytest.FixtureRequest) -> Iterator[None]:
    with FakeTensorMode() if request.param == "fake" else nullcontext():
        yield


def run(function: Callable[[Tensor], object]) -> Recording:
    return record(function, [torch.randn(4, 2, 8, requires_grad=True)])


def described(recording: Recording) -> list[str]:
    """Events as `+op` and `-op of the storage that dies`, a bar between forward and backward."""
    lines: dict[str, list[str]] = {"forward": [], "backward": []}
    for event in recording.events:
        storage = recording.storages[event.storage]
        lines[event.phase].append(("+" if event.kind == "alloc" else "-") + storage.op)
    return [" ".join(lines["forward"]), " ".join(lines["backward"])]


def halves(x: Tensor, function: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    first, second = x.split(4, -1)
    return function(first, second)


CASES = {
    # An op that saves nothing: the gradient handed in dies as soon as it is used.
    "scale": (lambda x: x * 0.5, ["+input +mul -mul", "+ones +mul -ones"], []),
    # A result that is saved outlives the forward that dropped it.
    "softmax": (
        lambda x: x.softmax(-1),
        ["+input +_softmax", "+ones +_softmax_backward_data -ones -_softmax"],
        ["_softmax"],
    ),
    # cat hands out views that pin the whole gradient.
    "cat": (
        lambda x: torch.cat((x * 2, x.exp()), -1),
        ["+input +mul +exp +cat -mul -cat", "+ones +mul -exp +mul -ones +add -mul -mul"],
        ["exp"],
    ),
    # The backward of split is one full-size cat. Both halves are views of one storage.
    "split": (
        lambda x: halves(x * 2, lambda a, b: a * 2 + b * 3),
        ["+input +mul +mul +mul +add -mul -mul -mul -add", "+ones +mul +mul -ones +cat -mul -mul +mul -cat"],
        [],
    ),
    # expand allocates nothing forward and a fresh sum backward.
    "expand": (
        lambda x: (x * 2).unsqueeze(2).expand(-1, -1, 3, -1) * 2,
        ["+input +mul +mul -mul -mul", "+ones +mul -ones +sum -mul +mul -sum"],
        [],
    ),
    # In place: no storage is made, and what is saved is the storage that was written to.
    "in place": (
        lambda x: (x * 2).exp_(),
        ["+input +mul", "+ones +mul -ones -mul +mul -mul"],
        ["mul"],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_timeline(name: str) -> None:
    function, timeline, saved = CASES[name]
    recording = run(function)
    assert described(recording) == timeline
    assert [storage.op for storage in recording.saved] == saved


def test_bytes_are_storages_and_the_peak_is_the_first_largest_moment() -> None:
    recording = run(lambda x: (x * 2).softmax(-1))
    assert [event.signed_bytes // X for event in recording.events] == [1, 1, 1, -1, 1, 1, -1, -1, 1, -1]
    assert [event.live_bytes // X for event in recording.events] == [1, 2, 3, 2, 3, 4, 3, 2, 3, 2]
    peak = recording.peak
    assert (peak.bytes, peak.op, peak.phase) == (4 * X, "_softmax_backward_data", "backward")
    assert [storage.op for storage in peak.alive] == ["input", "_softmax", "ones", "_softmax_backward_data"]
    assert recording.saved_bytes == X


def test_a_saved_view_counts_its_whole_storage_once() -> None:
    recording = run(lambda x: halves(x * 2, lambda a, b: a.exp() * b.sin()))
    assert [(storage.op, storage.bytes) for storage in recording.saved] == [("exp", HALF), ("mul", X), ("sin", HALF)]


def test_parameters_and_tables_are_left_out_and_parameter_gradients_told_apart() -> None:
    weight, table = torch.nn.Parameter(torch.randn(6, 8)), torch.randn(8)
    x = torch.randn(4, 2, 8, requires_grad=True)
    recording = record(lambda x: linear(x * table, weight), [x], parameters=[weight], tables=[table])
    assert [storage.op for storage in recording.saved] == ["mul"]
    (gradient,) = (storage for storage in recording.storages if storage.role == "parameter_gradient")
    assert gradient.bytes == recording.parameter_gradient_bytes == weight.nbytes
    assert recording.peak_with_parameter_gradients.bytes == recording.peak_bytes + weight.nbytes
    assert gradient in recording.peak_with_parameter_gradients.alive
    assert gradient not in recording.peak.alive
    assert recording.timeline("backward") == [192, 192, X, -X, -192, X, -X]
    assert recording.timeline("backward", parameter_gradients=False) == [192, X, -X, -192, X, -X]


def test_a_slice_of_a_parameter_costs_a_temporary_and_a_full_gradient() -> None:
    weight = torch.nn.Parameter(torch.randn(6, 8))
    x = torch.randn(4, 2, 8, requires_grad=True)
    recording = record(lambda x: linear(x, weight.narrow(0, 2, 3)), [x], parameters=[weight])
    backward = [(event.op, event.signed_bytes, event.role) for event in recording.events if event.phase == "backward"]
    assert backward == [
        ("ones", 96, "intermediate"),
        ("mm", 96, "intermediate"),
        ("mm", X, "intermediate"),
        ("mm", -96, "intermediate"),
        ("slice_backward", 192, "parameter_gradient"),
        ("slice_backward", -96, "intermediate"),
    ]


def test_einsum_copies_where_strides_do_not_merge() -> None:
    probs, value = torch.randn(1, 3, 4, 5, requires_grad=True), torch.randn(5, 1, 8, requires_grad=True)
    recording = record(lambda p, v: torch.einsum("bnst,tbd->sbnd", p, v), [probs, value])
    assert sorted(storage.op for storage in recording.saved) == ["clone", "input"]
    recording = record(lambda p, v: torch.einsum("bnst,tbd->bnsd", p, v), [_leaf(probs), _leaf(value)])
    assert [storage.op for storage in recording.saved] == ["input", "input"]


def test_several_outputs_and_outputs_without_gradient() -> None:
    recording = run(lambda x: (x * 2, (x.detach() * 3, x * 4)))
    assert described(recording) == [
        "+input +mul +mul +mul -mul -mul -mul",
        "+ones +ones +mul -ones +mul -ones +add -mul -mul",
    ]


def test_without_a_gradient_there_is_no_backward() -> None:
    recording = record(lambda x: x * 2, [torch.randn(4, 2, 8)])
    assert described(recording) == ["+input +mul -mul", ""]


class Cube(torch.autograd.Function):
    """Saves its input and what it computed on the way."""

    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        square = x * x
        ctx.save_for_backward(x, square)
        return square * x

    @staticmethod
    def backward(ctx, gradient: Tensor) -> Tensor:
        _, square = ctx.saved_tensors
        return gradient * square * 3


def test_custom_functions_save_like_any_other() -> None:
    saved = saved_storages(Cube.apply, torch.randn(4, 2, 8, requires_grad=True))
    assert [(storage.op, storage.phase) for storage in saved] == [("input", "forward"), ("mul", "forward")]


def test_recomputation_saves_nothing_more_and_is_seen_in_backward() -> None:
    recording = run(lambda x: checkpoint(lambda y: y.exp().sin(), x * 2, use_reentrant=False))
    assert [storage.op for storage in recording.kept] == ["input", "mul"]
    assert [storage.op for storage in recording.saved] == ["mul"]
    assert described(recording)[1].startswith("+ones +exp")


def test_the_recorder_pins_nothing() -> None:
    recording = run(lambda x: x.exp().sin().softmax(-1))
    end = [(storage.op, storage.phase) for storage in recording.alive_at_end]
    assert end == [("input", "forward"), ("mul", "backward")]  # the input and its gradient


def test_what_would_be_missed_is_refused() -> None:
    unknown = torch.randn(8)
    with pytest.raises(ValueError, match=r"shape \[8\] is no input, parameter or table"):
        run(lambda x: x * unknown)
    x = torch.randn(4, 2, 8, requires_grad=True)
    x.grad = torch.zeros_like(x)
    with pytest.raises(ValueError, match="already have a gradient"):
        record(lambda x: x * 2, [x])


def _leaf(tensor: Tensor) -> Tensor:
    return tensor.detach().clone().requires_grad_()
