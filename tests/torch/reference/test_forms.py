"""The forms compute the same attention, on one rank, whatever the kernel and the order of its letters."""

from __future__ import annotations

from dataclasses import replace

import pytest

pytest.importorskip("torch")

import torch
from torch import Tensor

from mla_cost.checks.reference import DIMS, Spec, initialise, make_block
from mla_cost.checks.reference.norm import EPSILON
from mla_cost.checks.reference.rope import apply_rope, rope_tables
from mla_cost.checks.reference.spec import DTYPES

CELL = Spec(dims=DIMS["tiny"], seq_len=12, sp=1, micro_batch=2, dtype="fp32", mask="tensor")
VARIANTS = {
    "as it is": CELL,
    "no query latent": replace(CELL, dims=replace(CELL.dims, q_lora_rank=None)),
    "no rope": replace(CELL, dims=replace(CELL.dims, rope=0)),
    "wide value": replace(CELL, dims=replace(CELL.dims, value=10)),
    "bsht": replace(CELL, attention_layout="bsht"),
    "bnsd": replace(CELL, attention_layout="bnsd"),
    "composite norms": replace(CELL, norm="composite"),
    "contiguous value": replace(CELL, v_layout="contiguous"),
    "eager-bmm": replace(CELL, kernel="eager-bmm"),
    "mem-efficient": replace(CELL, kernel="mem-efficient"),
    "npu-fusion": replace(CELL, kernel="npu-fusion"),
    "not causal": replace(CELL, mask="none"),
}


def results(spec: Spec) -> dict[str, Tensor]:
    block = make_block(spec)
    initialise(block)
    generator = torch.Generator().manual_seed(1)
    shape = (spec.seq_len, spec.micro_batch, spec.dims.hidden)
    x, gradient = (torch.randn(shape, generator=generator).to(DTYPES[spec.dtype]) for _ in range(2))
    out = block(x.requires_grad_())
    out.backward(gradient)
    assert x.grad is not None
    gradients = {name: parameter.grad for name, parameter in block.named_parameters()}
    return {"output": out.detach(), "input gradient": x.grad, **gradients}


def close(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> None:
    assert ours.keys() == theirs.keys()
    for tensor, other in zip(ours.values(), theirs.values(), strict=True):
        torch.testing.assert_close(tensor, other, atol=2e-5, rtol=1e-4)


def plain(spec: Spec) -> Tensor:
    """The output, written once more from the model's paper: one position and one head at a time."""
    dims, block = spec.dims, make_block(spec)
    initialise(block)
    weights = {name: parameter.detach() for name, parameter in block.named_parameters()}
    x = torch.randn((spec.seq_len, spec.micro_batch, dims.hidden), generator=torch.Generator().manual_seed(1))
    cos, sin = rope_tables(torch.arange(spec.seq_len), dims.rope, torch.float32)

    def norm(rows: Tensor, weight: Tensor) -> Tensor:
        return rows / (rows.pow(2).mean(-1, keepdim=True) + EPSILON).sqrt() * weight

    q = norm(x @ weights["q_down.weight"].T, weights["q_norm.weight"]) @ weights["q_up.weight"].T
    c = x @ weights["kv_down.weight"].T
    k_rope = apply_rope(c[..., None, dims.kv_lora_rank :], cos, sin)
    kv = norm(c[..., : dims.kv_lora_rank], weights["kv_norm.weight"]) @ weights["kv_up.weight"].T
    out = torch.empty(spec.seq_len, spec.micro_batch, dims.heads, dims.value)
    for head in range(dims.heads):
        rows = q.unflatten(-1, (dims.heads, -1))[:, :, head]
        q_nope, q_rope = rows.split([dims.nope, dims.rope], -1)
        q_rope = apply_rope(q_rope.unsqueeze(2), cos, sin).squeeze(2)
        k_nope, value = kv.unflatten(-1, (dims.heads, -1))[:, :, head].split([dims.nope, dims.value], -1)
        for s in range(spec.seq_len):
            scores = (q_nope[s] * k_nope[: s + 1]).sum(-1) + (q_rope[s] * k_rope[: s + 1, :, 0]).sum(-1)
            probs = (scores * (dims.nope + dims.rope) ** -0.5).softmax(0)
            out[s, :, head] = (probs.unsqueeze(-1) * value[: s + 1]).sum(0)
    return out.flatten(2) @ weights["out_proj.weight"].T


def test_explicit_is_the_papers_attention() -> None:
    torch.testing.assert_close(results(CELL)["output"], plain(CELL), atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("name", VARIANTS)
def test_absorbed_equals_explicit(name: str) -> None:
    close(results(replace(VARIANTS[name], form="absorbed")), results(VARIANTS[name]))


@pytest.mark.parametrize("name", VARIANTS)
def test_at_one_rank_laga_is_explicit_bit_for_bit(name: str) -> None:
    explicit, laga = (results(replace(VARIANTS[name], form=form)) for form in ("explicit", "laga"))
    assert all(torch.equal(explicit[key], laga[key]) for key in explicit)


@pytest.mark.parametrize(
    "name", [name for name in VARIANTS if VARIANTS[name].dims == CELL.dims and name != "not causal"]
)
def test_settings_change_no_number(name: str) -> None:
    close(results(VARIANTS[name]), results(CELL))


@pytest.mark.parametrize("softmax_dtype", ["activation", "fp32"])
def test_bf16_is_near_fp32(softmax_dtype: str) -> None:
    exact, rounded = results(CELL), results(replace(CELL, dtype="bf16", softmax_dtype=softmax_dtype))
    for key, tensor in exact.items():
        assert (rounded[key].float() - tensor).abs().max() < 2**-5 * tensor.abs().max(), key


def test_all_forms_share_one_state_dict() -> None:
    explicit = make_block(CELL)
    initialise(explicit)
    absorbed = make_block(replace(CELL, form="absorbed"))
    assert not any(absorbed.load_state_dict(explicit.state_dict()))


def test_a_group_of_another_size_is_refused() -> None:
    with pytest.raises(ValueError, match="sp 2 needs a group of that size"):
        make_block(replace(CELL, sp=2))
