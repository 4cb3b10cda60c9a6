"""What plain torch code of a published model keeps where profile reference prices one op: the notes' byte differences.

The torch code here is written as huggingface/transformers writes DeepSeek-V3 (modeling_deepseek_v3.py:
router in fp32, groups, gathered weights; experts' rows weighed in fp32 and added to their tokens by index; RMSNorm by
hand) and imports none of the program. Bytes of N tokens, h wide, K experts of e each.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest

pytest.importorskip("torch")

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.functional import linear

from mla_cost.checks.reference.experts import permute, router, unpermute
from mla_cost.checks.reference.measure import record
from mla_cost.checks.reference.norm import RMSNorm

N, H, E, K, GROUPS = 64, 96, 32, 4, 8


def plain_router(h: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    scores = linear(h.float(), weight.float()).sigmoid()
    choice = scores + bias
    best = choice.view(-1, GROUPS, E // GROUPS).topk(2, -1)[0].sum(-1)
    mask = torch.zeros_like(best).scatter_(1, best.topk(4, -1)[1], 1)
    allowed = mask.unsqueeze(-1).expand(-1, GROUPS, E // GROUPS).reshape(-1, E).bool()
    chosen = choice.masked_fill(~allowed, 0.0).topk(K, -1)[1]
    weights = scores.gather(1, chosen)
    return weights / (weights.sum(-1, keepdim=True) + 1e-20) * 2.5


def plain_rows(out: Tensor, weights: Tensor, tokens: Tensor) -> Tensor:
    """Rows of the experts `[N K h]` in the order of their experts -> `[N h]`."""
    summed = torch.zeros(N, H).index_add(0, tokens, out * weights.unsqueeze(-1))
    return summed.to(out.dtype)


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


def test_a_router_in_fp32_keeps_the_hidden_states_and_its_weight_again() -> None:
    with FakeTensorMode():
        weight, bias = nn.Parameter(leaf(E, H).detach()), torch.zeros(E)
        plain = saved(lambda h: plain_router(h, weight, bias), leaf(N, H), tables=(bias,), parameters=(weight,))
        priced = saved(lambda logits: router(logits, K)[0], leaf(N, 1, E))
    groups = N * (GROUPS * 2 * 8 + 4 * 8 + E)  # choices of the best two and of the groups; the mask that was filled
    assert priced == N * (E * 4 + K * (4 + 8))
    assert plain == priced + N * H * 4 + E * H * 4 + groups + N * 4  # and the sum of the weights


def test_rows_weighed_in_fp32_are_kept_again() -> None:
    with FakeTensorMode():
        tokens, chosen = torch.zeros(N * K, dtype=torch.int64), torch.zeros(N, 1, K, dtype=torch.int64)
        out, weights = leaf(N * K, H), leaf(N * K, dtype=torch.float32)
        made = record(lambda o, w: plain_rows(o, w, tokens), [out, weights], tables=[tokens])
        ours = record(
            lambda o, w: unpermute(o, w, chosen),
            [leaf(N, 1, K, H), leaf(N, 1, K, dtype=torch.float32)],
            tables=[chosen],
        )
    assert made.saved_bytes == N * K * H * (2 + 4) + N * K * 4
    assert ours.saved_bytes == N * K * H * 2 + N * K * (4 + 4)


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
