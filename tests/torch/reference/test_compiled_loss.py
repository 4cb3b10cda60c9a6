"""Why Megatron's own loss needs one more fp32 copy of the probabilities once torch.compile has had it.

The rule `cross_entropy_compiled` stands on this: a backward that subtracts at the targets through a view, in place, and
casts to bf16 allocates nothing in fp32 when run op by op, and one tensor of the probabilities' size when compiled.
"""

from __future__ import annotations

import os
import shutil

import pytest

pytest.importorskip("torch")

import torch

from mla_cost.checks.reference.allocator import record_allocator

ROWS, WORDS = 64, 1000


def gradient(probabilities, targets, of_loss):
    """Probabilities less one at each target, times the loss's gradient, in bf16; the argument is overwritten."""
    flat = probabilities.view(-1, WORDS)
    flat[torch.arange(ROWS), targets] -= 1.0
    return probabilities.mul_(of_loss.unsqueeze(-1)).to(torch.bfloat16)


def large_allocations(backward) -> list[int]:
    """What forward and backward allocate over the vocabulary, in order, in bytes per number."""

    class Loss(torch.autograd.Function):
        @staticmethod
        def forward(ctx, logits, targets):
            probabilities = torch.softmax(logits.float(), dim=-1)
            ctx.save_for_backward(probabilities, targets)
            return probabilities[..., 0].clone()

        @staticmethod
        def backward(ctx, of_loss):
            return backward(*ctx.saved_tensors, of_loss.float()), None

    targets = torch.randint(WORDS, (ROWS,))
    inputs = [torch.randn(ROWS, 1, WORDS, dtype=torch.bfloat16, requires_grad=True)]
    for _ in range(2):  # the first run compiles
        inputs[0].grad = None
        seen = record_allocator(lambda logits: Loss.apply(logits, targets), inputs)
    sizes = [event.bytes / (ROWS * WORDS) for event in seen.allocations if event.bytes > 0]
    return [int(size) for size in sizes if size >= 1]


def test_op_by_op_nothing_is_made_in_fp32_on_the_way_back():
    assert large_allocations(gradient) == [4, 4, 2]  # logits in fp32, probabilities; the gradient


@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a compiler")
@pytest.mark.skipif("MLA_COST_EXHAUSTIVE" not in os.environ, reason="a fact about a pinned release: make exhaustive")
def test_compiled_there_is_a_copy_of_the_probabilities():
    assert large_allocations(torch.compile(gradient)) == [4, 4, 4, 2]
