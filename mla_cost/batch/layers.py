"""One layer of a structural key at many points: kept, peak, sent and computed, as rows of one matrix."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from mla_cost.batch.matrices import Floats
from mla_cost.batch.programs import PHASES, Peak, Program, Programs, compiled_account, held, program
from mla_cost.declared.layers import LAYERS
from mla_cost.language import evaluate
from mla_cost.language.evaluate import FENCE
from mla_cost.language.machine import DTYPE_BYTES, PROGRAMS, Timeline
from mla_cost.language.polynomial import ZERO, Polynomial, total
from mla_cost.pricing.compile import Key


class Sent(NamedTuple):
    """Which bytes a row holds: `payload` or `wire`, on an axis, in a phase."""

    amount: str
    axis: str
    phase: str


class Standing(NamedTuple):
    """A tensor that stands for the whole run, and the rows of its outer and inner size."""

    name: str
    outer: Polynomial
    inner: Polynomial
    element_bytes: int


class Asked(NamedTuple):
    """What a layer is compiled for. kinds: the kernel workspace that counts."""

    key: Key
    kinds: frozenset[str]
    causal: bool


class Compiled(NamedTuple):
    """A layer compiled.

    The program's figures: kept, the hidden states that stages send, the gradients of weights, model and executed
    flops, and what collectives send. Then the largest size, and the most of forward and of backward.
    """

    program: Program
    sent: tuple[Sent, ...]
    standing: tuple[Standing, ...]


class Layer(NamedTuple):
    """A layer at many points, in double precision.

    figures: those of `pipelines.FIGURES`, a row each. flops: model, executed. exact: every size is below the fence.
    """

    figures: Floats
    flops: Floats
    sent: dict[Sent, Floats]
    exact: Any
    standing: tuple[tuple[str, Floats, Floats, int], ...]  # name, outer, inner, bytes of an element


@lru_cache(maxsize=PROGRAMS)
def compiled(asked: Asked) -> Compiled:
    """The rows of a layer.

    Raises:
        ProgramError: the kernel has no program for this form.

    """
    key = asked.key
    account = compiled_account(key)
    run = account.timeline
    sent = _sent(run)
    flops = (evaluate.model_flops, evaluate.executed_flops)
    figures = [
        *(evaluate.saved(run), _hidden(key), evaluate.gradients(run)),
        *(total(count(run, part, asked.causal) for parts in PHASES.values() for part in parts) for count in flops),
        *sent.values(),
    ]
    tape = account.accumulated
    if key.input_held and LAYERS[key.layer].takes_input:
        tape = held(tape, account)
    rows = program(asked, account, figures, [Peak(tape, asked.kinds, apart=True)], sizes=True)
    return Compiled(rows, tuple(sent), _standing(key, run))


def _sent(run: Timeline) -> dict[Sent, Polynomial]:
    found: dict[Sent, Polynomial] = {}
    for called in run.collectives:
        phase = next(name for name, parts in PHASES.items() if called.phase in parts)
        for amount, size in (("payload", called.payload), ("wire", called.wire)):
            row = Sent(amount, called.axis, phase)
            found[row] = found.get(row, ZERO) + size
    return found


def _hidden(key: Key) -> Polynomial:
    """As `Segment.hidden_bytes`."""
    return key.facts.elements((key.facts.rows, "b", "h")) * DTYPE_BYTES[key.dtype]


def _standing(key: Key, run: Timeline) -> tuple[Standing, ...]:
    size = key.facts.elements
    return tuple(
        Standing(item.name, size(item.outer), size(item.inner), DTYPE_BYTES[item.dtype]) for item in run.standing
    )


def layer(
    compiled: Compiled, programs: Programs, always: Mapping[str, float], values: Mapping[str, Any], size: int
) -> Layer:
    """One layer at points whose symbols have these values; `always` are those of every point of the model."""
    every = {**always, **values}
    figures, (largest, forward, backward) = programs.at(compiled.program, always, every, size)
    kept, hidden, gradients, model, executed, *sent = figures
    return Layer(
        figures=np.stack([kept, forward, backward, hidden, gradients]),
        flops=np.stack([model, executed]),
        sent={name: amount.copy() for name, amount in zip(compiled.sent, sent, strict=True)},
        exact=(largest < FENCE) & (forward < FENCE) & (backward < FENCE),
        standing=tuple(_stood(item, every, size) for item in compiled.standing),
    )


def _stood(item: Standing, values: Mapping[str, Any], size: int) -> tuple[str, Floats, Floats, int]:
    outer, inner = (np.broadcast_to(np.asarray(part.at(values), np.float64), size) for part in (item.outer, item.inner))
    return item.name, outer, inner, item.element_bytes
