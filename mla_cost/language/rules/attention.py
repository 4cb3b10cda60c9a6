"""A fused attention kernel: one op that keeps its operands, its output and its row statistics."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from mla_cost.language.machine import FusedCall, Gradients, Machine, Tensor
from mla_cost.language.polynomial import Polynomial


class Kept(NamedTuple):
    """A tensor that the kernel makes in forward for its own backward."""

    label: str
    dtype: str
    dims: tuple[str, ...]


def fused_attention(
    machine: Machine, label: str, query: Tensor, key: Tensor, value: Tensor, statistics: Sequence[Kept]
) -> Tensor:
    """query [s b n d], key [t b n d] or [t b d], value alike and w wide, to [s b n w].

    Backward makes the gradients of query, key and value, in that order. The products are counted once each for what
    the maths needs (backward twice forward) and what the kernel repeats on top (the scores, in backward). Masked
    blocks are skipped. What the kernel holds inside backward is one opaque symbol that each kernel defines.
    """
    result = machine.new(label, (*query.dims[:-1], value.dims[-1]), query.dtype)
    rows = [machine.new(kept.label, kept.dims, kept.dtype) for kept in statistics]
    scores, output = _products(machine, query, key, value)
    machine.flops(scores + output, attention=True, skips_masked=True)
    machine.timeline.fused_calls.append(FusedCall(query.dims, key.dims, value.dims))
    made = [(f"gradient of {t.label}", t.dims, t.dtype) for t in (query, key, value)]

    def backward(gradients: Gradients) -> list[Tensor | None]:
        del gradients
        machine.flops((scores + output) * 2, recomputed=scores, attention=True, skips_masked=True)
        results: list[Tensor | None] = [machine.new(*item) for item in made]
        machine.work(fused_backward=Polynomial.symbol("fused_workspace"))
        return results

    machine.attach([result], [query, key, value], backward, saved=[query, key, value, result, *rows])
    return result


def _products(machine: Machine, query: Tensor, key: Tensor, value: Tensor) -> tuple[Polynomial, Polynomial]:
    size = machine.facts.elements
    positions = size((key.dims[0],))
    return size(query.dims) * positions * 2, size((*query.dims[:-1], value.dims[-1])) * positions * 2
