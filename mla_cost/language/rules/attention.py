"""A fused attention kernel: one op that keeps its operands, its output and its row statistics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from mla_cost.language.machine import DTYPE_BYTES, FusedCall, Gradients, Machine, Tensor
from mla_cost.language.ops import op
from mla_cost.language.polynomial import Polynomial
from mla_cost.language.program import DeclarationError
from mla_cost.language.timeline import Product


class KernelSaved(NamedTuple):
    """A tensor that the kernel makes in forward for its own backward."""

    label: str
    dtype: str
    dims: tuple[str, ...]


@op("fused")
def fused(machine: Machine, label: str, words: tuple[str, ...], query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Each word `keep LABEL: DTYPE dims` names a tensor that the kernel keeps, its dims by the query's letters."""
    letters = dict(zip("sbnd", query.dims, strict=True)) | {"8": "8"}
    return fused_attention(machine, label, query, key, value, [_kept(word, letters) for word in words])


def _kept(word: str, letters: Mapping[str, str]) -> KernelSaved:
    keep, _, text = word.partition(" ")
    label, _, layout = text.partition(": ")
    dtype, _, dims = layout.partition(" ")
    if keep != "keep" or dtype not in DTYPE_BYTES or not letters.keys() >= set(dims):
        raise DeclarationError(f'expected "keep LABEL: DTYPE dims" with dims of s b n d 8, read "{word}"')
    return KernelSaved(label, dtype, tuple(letters[letter] for letter in dims))


def fused_attention(
    machine: Machine, label: str, query: Tensor, key: Tensor, value: Tensor, statistics: Sequence[KernelSaved]
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
    shape = attended(machine, query, key.dims[0], value)
    forward = scores + output
    machine.runs("attention", [query, key, value], [result, *rows], product=shape, flops=forward, skips_masked=True)
    through = [machine.bytes_of(t.dims, t.dtype) for t in (query, key, value)]
    kept = [machine.bytes_of(t.dims, t.dtype) for t in (result, *rows)]
    kept.append(kept[0])  # its gradient
    made = [(f"gradient of {t.label}", t.dims, t.dtype) for t in (query, key, value)]

    def backward(gradients: Gradients) -> list[Tensor | None]:
        del gradients
        machine.flops((scores + output) * 2, recomputed=scores, attention=True, skips_masked=True)
        machine.runs(
            "attention",
            [*through, *kept],
            through,
            product=shape,
            flops=forward * 2 + scores,
            skips_masked=True,
        )
        results: list[Tensor | None] = [machine.new(*item) for item in made]
        machine.work(fused_backward=Polynomial.symbol("fused_workspace"))
        return results

    machine.attach([result], [query, key, value], backward, saved=[query, key, value, result, *rows])
    return result


def attended(machine: Machine, query: Tensor, positions: str, value: Tensor) -> Product:
    """The shape of attention over so many positions, for `Machine.runs`."""
    size = machine.predicates.elements
    s, b, n, d = query.dims
    return Product(size((b, n)), size((s,)), size((positions,)), size((d,)) + size(value.dims[-1:]))


def _products(machine: Machine, query: Tensor, key: Tensor, value: Tensor) -> tuple[Polynomial, Polynomial]:
    size = machine.predicates.elements
    positions = size((key.dims[0],))
    return size(query.dims) * positions * 2, size((*query.dims[:-1], value.dims[-1])) * positions * 2
