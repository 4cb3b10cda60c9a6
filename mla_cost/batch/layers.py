"""One layer of a structural key at many points: kept, peak, sent and computed, as rows of one matrix."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from mla_cost.batch.matrices import Floats
from mla_cost.batch.programs import ProgramRows, Programs, TapePeak, compiled_account, held, program
from mla_cost.declared.layers import LAYERS
from mla_cost.language import evaluate
from mla_cost.language.evaluate import EXACT_LIMIT
from mla_cost.language.machine import DTYPE_BYTES, PROGRAMS, Timeline
from mla_cost.language.polynomial import ZERO, Polynomial, total
from mla_cost.pricing.key import Key
from mla_cost.pricing.persistent import Buffer
from mla_cost.pricing.step_traffic import PHASES

Sent = tuple[str, str]  # an axis and a phase: one of PHASES


class LayerAsked(NamedTuple):
    """What a layer is compiled for. kinds: the kernel workspace that counts.

    gathered: whether its gradients stay until its backward ends.
    """

    key: Key
    kinds: frozenset[str]
    causal: bool
    gathered: bool = False


class Compiled(NamedTuple):
    """A layer compiled.

    The program's figures: kept, the hidden states that stages send, the gradients of weights, model and executed
    flops, and what collectives send. Then the largest size, and the most of forward and of backward.
    """

    program: ProgramRows
    sent: tuple[Sent, ...]
    persistent: tuple[Buffer, ...]


class LayerArrays(NamedTuple):
    """A layer at many points, in double precision.

    figures: those of `pipelines.FIGURES`, a row each. flops: model, executed. sent: payload and wire.
    exact: every size is below the exact-integer limit.
    """

    figures: Floats
    flops: Floats
    sent: dict[Sent, tuple[Floats, Floats]]
    exact: Any
    persistent: tuple[Buffer, ...]


@lru_cache(maxsize=PROGRAMS)
def compiled(asked: LayerAsked) -> Compiled:
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
        *chain(*sent.values()),
    ]
    tape = account.allocated if asked.gathered else account.accumulated
    if key.input_held and LAYERS[key.layer].takes_input:
        tape = held(tape, account)
    rows = program(asked, account, figures, [TapePeak(tape, asked.kinds, apart=True)], sizes=True)
    return Compiled(rows, tuple(sent), _persistent(key, run))


def _sent(run: Timeline) -> dict[Sent, tuple[Polynomial, Polynomial]]:
    """Payload and wire bytes."""
    found: dict[Sent, tuple[Polynomial, Polynomial]] = {}
    for called in run.collectives:
        phase = next(name for name, parts in PHASES.items() if called.phase in parts)
        payload, wire = found.get((called.axis, phase), (ZERO, ZERO))
        found[called.axis, phase] = payload + called.payload, wire + called.wire
    return found


def _hidden(key: Key) -> Polynomial:
    """As `Segment.hidden_bytes`."""
    return key.predicates.elements((key.predicates.rows, "b", "h")) * DTYPE_BYTES[key.dtype]


def _persistent(key: Key, run: Timeline) -> tuple[Buffer, ...]:
    size = key.predicates.elements
    return tuple(
        Buffer(item.name, size(item.outer), size(item.inner), DTYPE_BYTES[item.dtype], item.each)
        for item in run.persistent
    )


def layer(
    compiled: Compiled, programs: Programs, always: Mapping[str, float], values: Mapping[str, Any], size: int
) -> LayerArrays:
    """One layer at points whose symbols have these values; `always` are those of every point of the model."""
    every = {**always, **values}
    figures, (largest, forward, backward) = programs.at(compiled.program, always, every, size)
    kept, hidden, gradients, model, executed, *sent = figures
    return LayerArrays(
        figures=np.stack([kept, forward, backward, hidden, gradients]),
        flops=np.stack([model, executed]),
        sent={
            name: (payload.copy(), wire.copy())
            for name, payload, wire in zip(compiled.sent, sent[::2], sent[1::2], strict=True)
        },
        exact=(largest < EXACT_LIMIT) & (forward < EXACT_LIMIT) & (backward < EXACT_LIMIT),
        persistent=tuple(_at(item, every, size) for item in compiled.persistent),
    )


def _at(item: Buffer, values: Mapping[str, Any], size: int) -> Buffer:
    outer, inner = (np.broadcast_to(np.asarray(part.at(values), np.float64), size) for part in (item.outer, item.inner))
    return item._replace(outer=outer, inner=inner)
