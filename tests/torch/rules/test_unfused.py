"""Transformer Engine's unfused attention against its own statements in torch; its softmax kernel is a stand-in.

The stand-in allocates what csrc/extensions/softmax.cpp does: a result, and a gradient that is new (2.19) or is written
where the gradient of the result lies (before). The products, their scales and copies are torch's own.
"""

from __future__ import annotations

import pytest

from mla_cost.declared.profiles import PROFILES
from mla_cost.pricing.key import Key
from mla_cost.pricing.run import ProgramRun
from tests.torch.rules.harness import Layout, Operand, check, each_value, torch, values

QUERY, KEY, VALUE = Operand("q", "S b l k+r"), Operand("key", "S b l k+r"), Operand("value", "S b l v")
AS_WRITTEN = Layout(("as written",) * 3, "as written")


class Softmax(torch.autograd.Function):
    """A softmax that keeps its result."""

    @staticmethod
    def forward(ctx, scores, in_place):
        ctx.in_place = in_place
        result = torch.empty_like(scores)
        ctx.save_for_backward(result)
        return result

    @staticmethod
    def backward(ctx, gradient):
        _ = ctx.saved_tensors
        return gradient if ctx.in_place else torch.empty_like(gradient), None


def full_mask(s):
    """utils.py, get_full_mask, of a causal mask."""
    mask = torch.arange(s, dtype=torch.int32).view(s, 1) - torch.arange(s, dtype=torch.int32).view(1, s)
    left = mask - s
    right = mask + 0
    return torch.logical_not((left <= 0) & ~(right < 0))


def unfused(q, key, value, in_place):
    """backends.py, UnfusedDotProductAttention._forward, sbhd, without what it does for other layouts."""
    s, b, n = q.shape[:3]
    mask = full_mask(s)
    scores = torch.empty(b * n, s, s, dtype=q.dtype)
    q = q.reshape(s, b * n, -1)
    key = key.reshape(s, b * n, -1)
    scores = torch.baddbmm(scores, q.transpose(0, 1), key.transpose(0, 1).transpose(1, 2), beta=0.0, alpha=0.125).view(
        b, n, s, s
    )
    probabilities = Softmax.apply(scores, in_place)
    value = value.reshape(s, b * n, -1)
    context = torch.bmm(probabilities.view(b * n, s, s), value.transpose(0, 1)).view(b, n, s, -1)
    context = context.permute(2, 0, 1, 3).contiguous()
    del mask
    return context


@each_value(values(), values(b=1), values(P=1))
@pytest.mark.parametrize("backend", ["unfused", "unfused-in-place"])
def test_scores_softmax_and_context(base, backend):
    text = PROFILES["megatron"].pieces("dense")["unfused"]

    def in_torch(_, q, key, value):
        return unfused(q, key, value, backend == "unfused-in-place")

    def in_rules(machine, q, key, value):
        facts = Key("explicit", "ulysses", "flash", machine.predicates, machine.dtype, attention_backend=backend)
        run = ProgramRun(facts)
        run.machine = machine
        return run._call(text, [q, key, value])[0]

    check(base, [QUERY, KEY, VALUE], in_torch, in_rules, tried=lambda _: iter([AS_WRITTEN]))
