"""Stand-ins: the recorder sees the stated allocations and nothing else, and their numbers are right."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext

import pytest

pytest.importorskip("torch")

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from mla_cost.checks.reference import Recording, Spec, record, run_fake
from mla_cost.checks.reference.fused import flash_attention, npu_fusion_attention, sdpa
from mla_cost.checks.reference.norm import RMSNorm

S, B, N, D, V = 4, 2, 3, 8, 5


@pytest.fixture(params=["real", "fake"])
def mode(request: pytest.FixtureRequest) -> Iterator[None]:
    with FakeTensorMode() if request.param == "fake" else nullcontext():
        yield


def operands(dtype: torch.dtype = torch.bfloat16) -> list[Tensor]:
    return [torch.randn(S, B, N, width, dtype=dtype, requires_grad=True) for width in (D, D, V)]


def allocated(recording: Recording, phase: str) -> list[tuple[tuple[int, ...], str]]:
    return [
        (storage.shape, storage.dtype)
        for storage in recording.storages
        if storage.phase == phase and storage.op not in ("input", "ones")
    ]


@pytest.mark.usefixtures("mode")
@pytest.mark.parametrize(
    ("attention", "statistics"),
    [(flash_attention, [(B, N, S)]), (npu_fusion_attention, [(B, N, S, 8), (B, N, S, 8)])],
)
def test_attention_allocates_what_it_states(attention, statistics: list[tuple[int, ...]]) -> None:
    recording = record(lambda q, k, v: attention(q, k, v, 0.5, None), operands())
    assert allocated(recording, "forward") == [
        ((S, B, N, V), "bfloat16"),
        *((shape, "float32") for shape in statistics),
    ]
    assert allocated(recording, "backward") == [((S, B, N, width), "bfloat16") for width in (D, D, V)]
    assert len(recording.saved) == 4 + len(statistics)


@pytest.mark.usefixtures("mode")
def test_attention_keeps_views_as_they_are_and_returns_contiguous_gradients() -> None:
    both = torch.randn(S, B, N, D + V, requires_grad=True)
    q = torch.randn(S, B, N, D, requires_grad=True)

    def attend(q: Tensor, both: Tensor) -> Tensor:
        key, value = both.split([D, V], -1)
        return flash_attention(q, key, value, 0.5, None)

    recording = record(attend, [q, both])
    assert [storage.op for storage in recording.saved] == ["input", "input", "flash_attention", "flash_attention"]


@pytest.mark.usefixtures("mode")
def test_fused_norm_keeps_its_input_and_one_root_per_row() -> None:
    x, norm = torch.randn(S, B, D + V, requires_grad=True), RMSNorm(D, "fused", torch.float32)
    recording = record(lambda x: norm(x[..., :D]), [x], parameters=norm.parameters())
    assert [(storage.op, storage.bytes) for storage in recording.saved] == [
        ("input", S * B * (D + V) * 4),
        ("rms_norm", S * B * 4),
    ]
    assert allocated(recording, "forward") == [((S, B, D), "float32"), ((S, B), "float32")]
    assert allocated(recording, "backward")[:2] == [((S, B, D), "float32"), ((D,), "float32")]


@pytest.mark.parametrize("first", [None, 0])
@pytest.mark.parametrize("attention", [flash_attention, npu_fusion_attention])
def test_attention_is_softmax_attention(attention, first: int | None) -> None:
    ours, torchs = operands(torch.float64), operands(torch.float64)
    for mine, other in zip(ours, torchs, strict=True):
        other.data.copy_(mine)
    out = attention(*ours, 0.5, first)
    q, k, v = (tensor.permute(1, 2, 0, 3) for tensor in torchs)
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=first == 0, scale=0.5)
    gradient = torch.randn_like(out)
    out.backward(gradient)
    expected.permute(2, 0, 1, 3).backward(gradient)
    torch.testing.assert_close(out, expected.permute(2, 0, 1, 3), atol=1e-6, rtol=1e-5)
    for mine, other in zip(ours, torchs, strict=True):
        torch.testing.assert_close(mine.grad, other.grad, atol=1e-6, rtol=1e-5)


def test_queries_that_start_later_see_the_keys_before_them() -> None:
    q, k, v = operands(torch.float32)
    whole = flash_attention(q, k, v, 0.5, 0)
    torch.testing.assert_close(flash_attention(q[2:], k, v, 0.5, 2), whole[2:])


def test_flash_and_sdpa_say_what_they_cannot_do() -> None:
    q, k, v = operands()
    with pytest.raises(ValueError, match="heads share"):
        flash_attention(q, k[:, :, 0], v[:, :, 0], 0.5, None)
    with pytest.raises(ValueError, match="start later"):
        sdpa(q, k, v, 0.5, 2, "flash")


def test_fused_norm_is_rms_norm() -> None:
    x, norm = torch.randn(S, B, D, dtype=torch.float64, requires_grad=True), RMSNorm(D, "fused", torch.float64)
    torch.nn.init.normal_(norm.weight)
    other, plain = x.detach().clone().requires_grad_(), RMSNorm(D, "composite", torch.float64)
    plain.load_state_dict(norm.state_dict())
    for module, data in ((norm, x), (plain, other)):
        module(data).pow(2).sum().backward()
    torch.testing.assert_close(x.grad, other.grad, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(norm.weight.grad, plain.weight.grad, atol=1e-5, rtol=1e-4)


def test_padded_flash_equals_torchs_own_fused_attention() -> None:
    """Where torch's CPU backend really is a fused kernel, the stand-in's timeline is torch's, event for event."""
    stand_in, fused = (
        run_fake(Spec(kernel="flash", seq_len=4096, sp=1, value_padding="qk", fused_attention=how))
        for how in ("stand-in", "sdpa")
    )
    assert stand_in.by_construction
    assert not fused.by_construction
    assert stand_in.timeline() == fused.timeline()
    assert stand_in.saved_bytes == fused.saved_bytes
    assert stand_in.peak_bytes == fused.peak_bytes


def test_torchs_own_is_refused_where_it_would_not_be_fused() -> None:
    with pytest.raises(RuntimeError, match=r"No (viable backend|available kernel)"):
        run_fake(Spec(kernel="flash", seq_len=4096, sp=1, fused_attention="sdpa"))  # key and value of unequal width
