"""One layer of a structural key at many points: kept, peak, sent and computed, as rows of one matrix."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from functools import lru_cache
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from mla_cost.batch.matrices import (
    OTHERS,
    Floats,
    Folded,
    Rows,
    evaluated,
    fold,
    monomials_of,
    over_others,
    rows_of,
    top,
    undominated,
)
from mla_cost.batch.workspace import fused_workspace
from mla_cost.declared.kernels import KERNELS
from mla_cost.declared.layers import LAYERS
from mla_cost.language import evaluate
from mla_cost.language.evaluate import FENCE, Account, Tape, account_of
from mla_cost.language.machine import DTYPE_BYTES, PROGRAMS, Timeline
from mla_cost.language.polynomial import ZERO, Monomial, Polynomial, total
from mla_cost.pricing.compile import Key, timeline
from mla_cost.pricing.persistent import Buffer
from mla_cost.pricing.step_traffic import PHASES

Sent = tuple[str, str]  # an axis and a phase: one of PHASES


class Asked(NamedTuple):
    """What a layer is compiled for. kinds: the kernel workspace that counts."""

    key: Key
    kinds: frozenset[str]
    causal: bool


class Program(NamedTuple):
    """A layer compiled.

    The parts: kept, the hidden states that stages send, the gradients of weights, and what collectives send; model and
    executed flops; sizes; moments of forward and of backward.
    """

    asked: Asked
    sent: tuple[Sent, ...]
    monomials: tuple[Monomial, ...]
    parts: tuple[Rows, ...]
    persistent: tuple[Buffer, ...]


class Layer(NamedTuple):
    """A layer at many points, in double precision.

    figures: those of `pipelines.FIGURES`, a row each. flops: model, executed. sent: payload and wire.
    exact: every size is below the fence.
    """

    figures: Floats
    flops: Floats
    sent: dict[Sent, tuple[Floats, Floats]]
    exact: Any
    persistent: tuple[Buffer, ...]


@lru_cache(maxsize=PROGRAMS)
def compiled(asked: Asked) -> Program:
    """The rows of a layer.

    Raises:
        ProgramError: the kernel has no program for this form.

    """
    run = _handed_over(asked.key)
    account = account_of(run)
    sent = _sent(run)
    figures = [evaluate.saved(run), _hidden(asked.key), _gradients(run), *map(over_others, chain(*sent.values()))]
    flops = [_model_flops(run, asked.causal), _executed_flops(run, asked.causal)]
    sizes = [over_others(polynomial) for polynomial in account.polynomials]
    monomials = monomials_of([*figures, *flops, *sizes])
    rows = rows_of(sizes, monomials)
    parts = (
        Rows(rows_of(figures, monomials)),
        Rows(rows_of(flops, monomials)),
        *(
            Rows(undominated(each), largest=True)
            for each in (rows, *(held @ rows for held in _moments(account, asked)))
        ),
    )
    return Program(asked, tuple(sent), monomials, parts, _persistent(asked.key, run))


def _handed_over(key: Key) -> Timeline:
    """The timeline of a layer whose input nobody else holds, which serves both: see `_tape`."""
    return timeline(key._replace(input_held=False))


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
    return key.facts.elements((key.facts.rows, "b", "h")) * DTYPE_BYTES[key.dtype]


def _gradients(run: Timeline) -> Polynomial:
    return total(each.size for each in run.allocations if each.kind == "parameter_gradient")


def _persistent(key: Key, run: Timeline) -> tuple[Buffer, ...]:
    size = key.facts.elements
    return tuple(
        Buffer(item.name, size(item.outer), size(item.inner), DTYPE_BYTES[item.dtype]) for item in run.standing
    )


# ---- flops, as `pricing.flop_count` counts them


def _model_flops(run: Timeline, causal: bool) -> Polynomial:
    every = total(evaluate.flops(run, phase) for phase in PHASES)
    return every - _half(run, evaluate.attention_flops) if causal else every


def _executed_flops(run: Timeline, causal: bool) -> Polynomial:
    every = total(evaluate.flops(run, phase) + evaluate.repeated_flops(run, phase) for phase in PHASES)
    return every - _half(run, evaluate.skipped_flops) if causal else every


def _half(run: Timeline, count: Any) -> Polynomial:
    """Half of a count that is even whatever the sizes: every coefficient is."""
    whole: Polynomial = total(count(run, phase) for phase in PHASES)
    if any(value % 2 for value in whole.terms.values()):
        raise ArithmeticError(f"an odd coefficient in {whole}")
    return Polynomial({monomial: value // 2 for monomial, value in whole.terms.items()})


# ---- moments, as `Evaluation.walk_accumulated` finds them


def _moments(account: Account, asked: Asked) -> tuple[Floats, Floats]:
    """Moments of forward and of backward at which most can be alive: how often each of the account's sizes is."""
    tape, count = _tape(account, asked.key), len(account.polynomials)
    steps = np.zeros((len(tape.sizes), count))
    steps[np.arange(len(tape.sizes)), tape.sizes] = tape.signs
    live = np.cumsum(steps, axis=0)
    works = [
        (at, live[bisect_right(tape.events, at) - 1] + _held(work, asked.kinds, count)) for at, work in account.works
    ]
    later = account.timeline.forward_events
    forward = [held for at, held in works if at < later]
    backward = [held for at, held in works if at >= later]
    return (
        np.array([*live[_ends(tape.signs, 0, tape.forward)], *forward]),
        np.array([*live[_ends(tape.signs, tape.forward, len(live))], *backward]),
    )


def _tape(account: Account, key: Key) -> Tape:
    """Every change of live bytes. An input that the stage itself holds is one that the layer does not free."""
    tape, given = account.accumulated, account.timeline.allocations[0]
    if not (key.input_held and LAYERS[key.layer].takes_input):
        return tape
    rows = list(zip(tape.sizes, tape.signs, tape.events, strict=True))
    at = next(at for at, row in enumerate(rows) if row == (account.of_allocation[given.number], -1, given.freed))
    sizes, signs, events = zip(*rows[:at], *rows[at + 1 :], strict=True)
    return Tape(sizes, signs, events, tape.forward - (at < tape.forward))


def _held(work: tuple[tuple[str, int], ...], kinds: frozenset[str], count: int) -> Floats:
    """The kernel workspace of an event, as far as it counts."""
    found: Floats = np.zeros(count)
    for kind, amount in work:
        found[amount] += kind in kinds
    return found


def _ends(signs: tuple[int, ...], first: int, last: int) -> list[int]:
    """The steps of a phase after which live bytes stop rising, and its first, which may fall from another phase."""
    tops = [at for at in range(first, last) if signs[at] > 0 and (at + 1 == last or signs[at + 1] < 0)]
    return [first, *tops]


# ---- at many points


class Layers:
    """Programs folded for one model: the values that all points share are multiplied in once."""

    def __init__(self) -> None:
        self._folded: dict[Any, Folded] = {}

    def at(self, program: Program, always: Mapping[str, float], values: dict[str, Any], size: int) -> Layer:
        """One layer at points whose symbols have these values; `always` are those of every point of the model."""
        key = program.asked.key
        every = {**always, **values}
        for call in _handed_over(key).fused_calls:
            every["fused_workspace"] = fused_workspace(KERNELS[key.kernel], key.facts, call, every)
        return _layer(program, self._fold(program, always), every, size)

    def _fold(self, program: Program, always: Mapping[str, float]) -> Folded:
        known = (program.asked, tuple(always.items()))
        if known not in self._folded:
            self._folded[known] = fold(program.monomials, program.parts, always)
        return self._folded[known]


def _layer(program: Program, folded: Folded, values: Mapping[str, Any], size: int) -> Layer:
    result = evaluated(folded, values, size)
    figures, flops, sizes, *moments = (result[span].copy() for span in folded.spans)
    forward, backward = map(top, moments)
    kept, hidden, gradients, *sent = figures
    return Layer(
        figures=np.stack([kept, forward, backward, hidden, gradients]),
        flops=flops,
        sent=dict(zip(program.sent, zip(sent[::2], sent[1::2], strict=True), strict=True)),
        exact=(top(sizes) < FENCE) & (forward < FENCE) & (backward < FENCE),
        persistent=tuple(_at(item, values, size) for item in program.persistent),
    )


def _at(item: Buffer, values: Mapping[str, Any], size: int) -> Buffer:
    outer, inner = (np.broadcast_to(np.asarray(part.at(values), np.float64), size) for part in (item.outer, item.inner))
    return item._replace(outer=outer, inner=inner)


def others(values: Mapping[str, Any]) -> dict[str, Any]:
    """The ranks of each axis less this one."""
    return {name: values[symbol] - 1 for symbol, name in OTHERS.items()}
