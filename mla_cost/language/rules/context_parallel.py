"""Attention that exchanges keys and values inside its own call, as Transformer Engine does under context parallelism.

Read in source, not run: NVIDIA/TransformerEngine@d0067d0da6cb
transformer_engine/pytorch/attention/dot_product_attention/context_parallel.py, bf16, layout s b n d, causal, without
padding. A rank holds two chunks of the sequence, one from each end, so that masked work is shared evenly.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from mla_cost.language.machine import FusedCall, Gradients, Machine, Tensor
from mla_cost.language.ops import op
from mla_cost.language.polynomial import Polynomial
from mla_cost.language.rules.attention import attended
from mla_cost.language.rules.exchange import OUTSIDE, SEQUENCE, recorded

Dims = tuple[str, ...]
Made = tuple[str, Dims, str]  # a label, dims and a dtype


@op("ring_attention")
def ring_attention(machine: Machine, label: str, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """query [s b n k+r], key alike and value [s b n v] to [s b n v]: keys and values go round, point to point.

    Forward holds what every step received and made until it returns; the last rank makes whole outputs in all steps and
    needs most. Kept: the query, what the last step received (as large as the rank's own keys and values, which are not
    kept), the output and fp32 log-sum-exp. Backward sends keys and values round again, with their gradients behind
    them, between two buffers; what it hands back are parts of one. AttnFuncWithCPAndKVP2P, lines 1356-2972.
    """
    sent: Dims = (*key.dims[:-1], f"{key.dims[-1]}+{value.dims[-1]}")
    kept = machine.new(f"{key.label} and {value.label} of the last step", sent, key.dtype)
    others = machine.new(f"{key.label} and {value.label} of the other steps", (_others(machine), *sent), key.dtype)
    _passed_on(machine, f"{key.label} and {value.label}", sent, key.dtype)
    steps = machine.new(f"{label} of the steps", ("S", *query.dims[1:-1], value.dims[-1]), query.dtype)
    rows = machine.new(f"{label} log-sum-exp of the steps", (*query.dims[1:3], "S"), "fp32")
    machine.timeline.fused_calls.append(FusedCall(query.dims, key.dims, value.dims))
    each = machine.predicates.size("C" if machine.predicates.nested else "P")
    result = machine.new(label, (*query.dims[:-1], value.dims[-1]), query.dtype)
    attention = _Attention(machine, query, value, each)
    attention.forward([query, kept, others], [steps, rows])
    machine.runs("elementwise", [steps, rows], [result])
    statistics = machine.new("log-sum-exp", (*query.dims[1:3], query.dims[0]), "fp32")
    del others, steps, rows
    through = [size * each for size in _bytes(machine, query, key, value)]
    read = through + [size * each for size in _bytes(machine, result, result, statistics)]
    made = [(f"gradient of {t.label}", t.dims, t.dtype) for t in (query, key, value)]
    pair = f"{key.label} and {value.label}"

    def backward(gradients: Gradients) -> list[Tensor | None]:
        given = _whole(machine, label, gradients[0])
        of_query = machine.new(*made[0])
        sending, receiving = _two_buffers(machine, pair, sent, made[1][2])
        step = [machine.new(f"{name} of a step", dims, dtype) for name, dims, dtype in made]
        attention.backward(read, through)
        del step, sending, given
        return [of_query, *_views(machine, receiving, made[1:])]

    machine.attach([result], [query, key, value], backward, saved=[query, kept, result, statistics])
    return result


@op("gathered_attention")
def gathered_attention(machine: Machine, label: str, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """query [s b n k+r], key alike and value [s b n v] to [s b n v]: all keys and values on every rank, twice.

    Forward gathers them and puts the chunks in order, and attends in two steps of half the queries each. Kept: query,
    key and value as they were given, the output and fp32 log-sum-exp. Backward gathers and orders again, sums what two
    steps make for s + S positions and half of s more, orders that and scatters it. What steps see depends on the rank;
    taken is the first, whose steps see the first chunk and all. AttnFuncWithCPAndKVAllGather, lines 3014-4167.
    """
    given = (query, key, value)
    gathered = _in_order(machine, (key, value))
    result = machine.new(label, (*query.dims[:-1], value.dims[-1]), query.dtype)
    spare = machine.new(f"{label}, never written", result.dims, result.dtype)
    half: Dims = ("s_half", *query.dims[1:])
    steps, statistics = _halves(machine, label, (*half[:-1], value.dims[-1]), query.dtype)
    machine.timeline.fused_calls.append(FusedCall(half, gathered[0].dims, gathered[1].dims))
    attention = _Attention(machine, query, value, 2)
    attention.forward([query, *gathered], [*steps, *statistics])
    machine.runs("copy", steps, [result])
    through = _bytes(machine, query, *gathered)
    read = through + _bytes(machine, result, result, *statistics)
    del gathered, spare, steps
    made = [(f"gradient of {t.label}", t.dims, t.dtype) for t in given]

    def backward(gradients: Gradients) -> list[Tensor | None]:
        whole = _whole(machine, label, gradients[0])
        results: list[Tensor | None] = [machine.new(*made[0])]
        sums = [machine.new(f"{name}, all positions", ("S", *dims[1:]), dtype) for name, dims, dtype in made[1:]]
        gathered = _in_order(machine, given[1:])
        steps = _gradients_of_steps(machine, made, half)
        attention.backward(read, through)
        results += _scattered(machine, sums, made[1:])
        del whole, gathered, steps
        return results

    machine.attach([result], list(given), backward, saved=[*given, result, *statistics])
    return result


def _two_buffers(machine: Machine, pair: str, sent: Dims, dtype: str) -> list[Tensor]:
    """Keys and values with their gradients on their way: what is sent and what is received."""
    found = [
        machine.new(f"{pair} with their gradients, {buffer}", ("2", *sent), dtype)
        for buffer in ("one buffer", "the other")
    ]
    for what in ("", "gradient of "):
        _passed_on(machine, f"{what}{pair}", sent, dtype)
    return found


def _halves(machine: Machine, label: str, dims: Dims, dtype: str) -> tuple[list[Tensor], list[Tensor]]:
    """The outputs and the log-sum-exp of two steps of half the queries each."""
    steps, statistics = [], []
    for step in ("first", "second"):
        steps.append(machine.new(f"{label} of the {step} half", dims, dtype))
        statistics.append(machine.new(f"log-sum-exp of the {step} half", ("b", "n", "s_half"), "fp32"))
    return steps, statistics


def _gradients_of_steps(machine: Machine, made: Sequence[Made], half: Dims) -> list[Tensor]:
    """What two steps make: the first sees the first chunk of keys and values, the second all."""
    steps = []
    for positions in ("s_half", "S"):
        steps.append(machine.new(f"{made[0][0]} of a step", half, made[0][2]))
        steps += [machine.new(f"{name} of a step", (positions, *dims[1:]), dtype) for name, dims, dtype in made[1:]]
    return steps


def _views(machine: Machine, buffer: Tensor, made: Sequence[Made]) -> list[Tensor | None]:
    """Parts of one buffer, each under its own name."""
    parts = [machine.view(buffer, machine.predicates.row_major(dims)) for _, dims, _ in made]
    for part, (name, _, _) in zip(parts, made, strict=True):
        part.label = name
    return [*parts]


def _scattered(machine: Machine, sums: list[Tensor], made: Sequence[Made]) -> list[Tensor | None]:
    """Sums over all positions put into the order of the ranks, then to each rank its part; a sum goes once sent."""
    for at, (name, _, _) in enumerate(made):
        sums[at] = machine.copied(sums[at], f"{name}, as ranks hold it")
    results: list[Tensor | None] = []
    for name, dims, dtype in made:
        results.append(machine.new(name, dims, dtype))
        recorded(machine, "reduce_scatter", SEQUENCE, name, ("S", *dims[1:]), dtype, dims)
        sums.pop(0)
    return results


def _passed_on(machine: Machine, label: str, sent: Dims, dtype: str) -> None:
    """What a rank hands to the next one, once for every other rank, or every other group where there are any."""
    mesh = OUTSIDE if machine.predicates.nested else SEQUENCE
    recorded(machine, "point_to_point", mesh, label, (_others(machine), *sent), dtype, sent)


def _others(machine: Machine) -> str:
    return "C_others" if machine.predicates.nested else "P_others"


def _in_order(machine: Machine, given: tuple[Tensor, ...]) -> list[Tensor]:
    """All ranks' positions of each tensor, gathered and then copied into the order of the sequence."""
    found = []
    for tensor in given:
        found.append(machine.new(f"{tensor.label} gathered", ("S", *tensor.dims[1:]), tensor.dtype))
        recorded(machine, "all_gather", SEQUENCE, tensor.label, tensor.dims, tensor.dtype, tensor.dims)
    for at, tensor in enumerate(given):
        found[at] = machine.copied(found[at], f"{tensor.label} in order")
    return found


def _whole(machine: Machine, label: str, gradient: Tensor | None) -> Tensor:
    assert gradient is not None
    if machine.is_contiguous(gradient):
        return gradient
    return machine.copied(gradient, f"gradient of {label} copy")


def _bytes(machine: Machine, *tensors: Tensor) -> list[Polynomial]:
    return [machine.bytes_of(tensor.dims, tensor.dtype) for tensor in tensors]


class _Attention:
    """A rank's queries with all positions in some launches: the flops of all, and what kernels read and write."""

    def __init__(self, machine: Machine, query: Tensor, value: Tensor, launches: Polynomial | int) -> None:
        size = machine.predicates.elements
        self._machine = machine
        self._scores = size((*query.dims, "S")) * 2
        self._both = self._scores + size((*query.dims[:-1], value.dims[-1], "S")) * 2
        shape = attended(machine, query, "S", value)
        self._runs = partial(machine.runs, "attention", launches=launches, product=shape, skips_masked=True)

    def forward(self, reads: Sequence[Tensor], writes: Sequence[Tensor]) -> None:
        """Scores and output."""
        self._machine.flops(self._both, attention=True, skips_masked=True)
        self._runs(reads, writes, flops=self._both)

    def backward(self, reads: Sequence[Polynomial], writes: Sequence[Polynomial]) -> None:
        """The gradients of both, and scores once more."""
        self._machine.flops(self._both * 2, recomputed=self._scores, attention=True, skips_masked=True)
        self._runs(reads, writes, flops=self._both * 2 + self._scores)
        self._machine.work(fused_backward=Polynomial.symbol("fused_workspace"))
