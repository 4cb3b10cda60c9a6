"""What the plain torch code of published models keeps where profile reference has one op, and that our styles keep it.

The torch code here is typed from huggingface/transformers@f5a9ec512fa9 (models/deepseek_v3/modeling_deepseek_v3.py) and
pytorch/torchtitan@003edbe52d6f (models/moe/moe.py) and imports none of the program; the styles of the setting moe_style
are the executor's. Bytes of N tokens, h wide, K experts of e each.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest

pytest.importorskip("torch")

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.functional import linear

from mla_cost.checks.reference.experts import permute, router
from mla_cost.checks.reference.measure import record
from mla_cost.checks.reference.norm import RMSNorm
from mla_cost.checks.reference.plain_experts import (
    rows_added,
    rows_gathered,
    rows_indexed,
    rows_scattered,
    titan_router,
    weighed,
    wide_router,
)

N, H, E, K, GROUPS = 64, 96, 32, 4, 8


def topk_router(h: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """`DeepseekV3TopkRouter.forward`, whose `get_topk_indices` is under no_grad."""
    logits = linear(h.type(torch.float32), weight.type(torch.float32))
    scores = logits.sigmoid()
    with torch.no_grad():
        choice = scores.view(-1, E) + bias.unsqueeze(0)
        best = choice.view(-1, GROUPS, E // GROUPS).topk(2, dim=-1)[0].sum(dim=-1)
        mask = torch.zeros_like(best).scatter_(1, torch.topk(best, k=4, dim=-1, sorted=False)[1], 1)
        allowed = mask.unsqueeze(-1).expand(-1, GROUPS, E // GROUPS).reshape(-1, E)
        chosen = torch.topk(choice.masked_fill(~allowed.bool(), 0.0), k=K, dim=-1, sorted=False)[1]
    weights = scores.gather(1, chosen)
    denominator = weights.sum(dim=-1, keepdim=True) + 1e-20
    weights /= denominator
    return chosen, weights * 2.5


def own_router(h: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    weights, chosen = wide_router(h, weight, bias, K)
    return chosen, weights


def expert_loop(h: Tensor, chosen: Tensor, weights: Tensor, scale: Tensor) -> Tensor:
    """`DeepseekV3MoE.moe`, its experts a product with a number each, which keeps its rows and no more."""
    total = torch.zeros_like(h, dtype=weights.dtype)
    mask = torch.nn.functional.one_hot(chosen, num_classes=E).permute(2, 0, 1)
    for expert in range(E):
        tokens, slots = torch.where(mask[expert])
        if tokens.numel() > 0:
            row_weights = weights[tokens, slots]
            out = h[tokens] * scale[expert]
            weighed = out * row_weights.unsqueeze(-1)
            total.index_add_(0, tokens, weighed)
    return total.type(h.dtype)


def all_rows(h: Tensor, chosen: Tensor, weights: Tensor, scale: Tensor) -> Tensor:
    """The same with all rows at once, as the style `transformers` has it."""
    total = torch.zeros_like(h, dtype=weights.dtype)
    rows, row_weights, positions = rows_indexed(h, weights, chosen)
    out = rows * scale[0]
    return rows_added(total, out, row_weights, positions).to(h.dtype)


def titan_moe(h: Tensor, weight: Tensor, bias: Tensor, scale: Tensor) -> Tensor:
    """torchtitan's `TokenChoiceTopKRouter`, `TokenReorderer` and `MoE.forward`, score_before_experts."""
    scores = torch.sigmoid(linear(h, weight).to(torch.float32))
    _, chosen = torch.topk(scores + bias, k=K, dim=1)
    top = scores.gather(dim=1, index=chosen)
    top = top / (top.sum(dim=-1, keepdim=True) + 1e-20)
    top = top * 2.5
    order = torch.argsort(chosen.view(-1), stable=True)
    top = top.view(-1)[order]
    index = (order // K).reshape(-1, 1).expand(-1, H)
    rows = torch.gather(h, dim=0, index=index)
    rows = (rows.to(torch.float32) * top.reshape(-1, 1)).to(h.dtype)
    out = rows * scale[0]
    return torch.zeros_like(h).scatter_add(dim=0, index=index, src=out)


def own_titan_moe(h: Tensor, weight: Tensor, bias: Tensor, scale: Tensor) -> Tensor:
    logits = linear(h, weight)
    weights, chosen = titan_router(logits, bias, K)
    del logits
    rows, row_weights, index = rows_gathered(h, weights, chosen)
    out = weighed(rows, row_weights) * scale[0]
    return rows_scattered(torch.zeros_like(h), out, index)


def plain_norm(x: Tensor, weight: Tensor) -> Tensor:
    wide = x.float()
    wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
    return weight * wide.to(x.dtype)


def saved(function: object, *inputs: Tensor, tables: Sequence[Tensor] = (), parameters: Sequence[Tensor] = ()) -> int:
    seen = record(function, list(inputs), tables=tables, parameters=parameters)  # type: ignore[arg-type]
    given = {tensor.untyped_storage().nbytes() for tensor in inputs}
    return sum(s.bytes for s in seen.saved if not (s.role == "input" and s.bytes in given))


def leaf(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.zeros(*shape, dtype=dtype, requires_grad=True)


def hidden() -> Tensor:
    return torch.randn(N, H).bfloat16().requires_grad_()


def router_weights() -> tuple[nn.Parameter, Tensor]:
    return nn.Parameter(torch.randn(E, H, dtype=torch.bfloat16)), torch.zeros(E)


def test_a_router_in_fp32_keeps_the_hidden_states_and_its_weight_again() -> None:
    theirs, ours = (
        saved(
            lambda x, code=code, weight=weight, bias=bias: code(x, weight, bias)[1],
            hidden(),
            tables=(bias,),
            parameters=(weight,),
        )
        for code in (topk_router, own_router)
        for weight, bias in [router_weights()]
    )
    with FakeTensorMode():
        fused = saved(lambda logits: router(logits, K)[0], leaf(N, 1, E))
    assert fused == N * (E * 4 + K * (4 + 8))
    # the copy that a division in place makes stands for the fused weights; and the sum
    assert theirs == ours == fused + N * H * 4 + E * H * 4 + N * 4


def test_rows_of_a_loop_over_experts_keep_what_all_rows_at_once_do() -> None:
    """On the CPU, since where rows go is read off their values: weighed rows in fp32 and two int64 a row are kept."""
    chosen, scale = torch.rand(N, E).topk(K)[1], torch.ones(E, dtype=torch.bfloat16)
    kept = [
        record(
            lambda x, w, code=code: code(x, chosen, w, scale),
            [hidden(), torch.rand(N, K, requires_grad=True)],
            tables=[chosen, scale],
        )
        for code in (expert_loop, all_rows)
    ]
    expected = N * K * (H * (2 + 4) + 4 + 8 + 8)  # rows as experts make them, weighed in fp32; weight, two numbers
    assert [found.saved_bytes for found in kept] == [expected, expected]


def test_the_executor_does_what_torchtitan_does() -> None:
    scale = torch.ones(1, dtype=torch.bfloat16)
    found = [
        record(
            lambda x, code=code, weight=weight, bias=bias: code(x, weight, bias, scale),
            [hidden()],
            tables=[bias, scale],
            parameters=[weight],
        )
        for code in (titan_moe, own_titan_moe)
        for weight, bias in [router_weights()]
    ]
    theirs, ours = ([s.bytes for s in each.saved] for each in found)
    assert theirs == ours
    assert sum(theirs) == N * (H * 2 + E * 4 + K * (8 + 4) + 4 + K * (H * 4 + 8 + 4 + 8))
    assert found[0].peak_bytes == found[1].peak_bytes


def test_rows_sent_to_experts_keep_a_map_only() -> None:
    with FakeTensorMode():
        tokens, chosen = torch.zeros(N * K, dtype=torch.int64), torch.zeros(N, 1, K, dtype=torch.int64)
        assert saved(lambda h: h[tokens], leaf(N, H), tables=(tokens,)) == 0  # its index: 8 bytes a row, int64
        assert saved(lambda h: permute(h, chosen), leaf(N, 1, H), tables=(chosen,)) == N * K * 4


def test_a_norm_by_hand_keeps_the_input_in_fp32_and_the_normal_form() -> None:
    with FakeTensorMode():
        weight = nn.Parameter(torch.zeros(H, dtype=torch.bfloat16))
        plain = record(lambda x: plain_norm(x, weight), [leaf(N, H)], parameters=[weight])
        module = RMSNorm(H, "fused", torch.bfloat16)
        fused = record(module, [leaf(N, H)])
    assert fused.saved_bytes == N * H * 2 + N * 4
    assert plain.saved_bytes == N * H * (4 + 2) + N * 4
