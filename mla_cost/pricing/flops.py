"""Flops of programs: exact ints of any size, to which no exact-integer limit applies."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from mla_cost.language import evaluate
from mla_cost.language.evaluate import Evaluation
from mla_cost.language.machine import PROGRAMS, Timeline
from mla_cost.language.polynomial import Polynomial
from mla_cost.results import FlopCount, Flops


def flops(programs: Sequence[Evaluation], times: int, causal: bool) -> Flops:
    """What programs, one after another, run in so many repeats: blocks of a stack, or micro-batches of a stage."""
    return Flops(_of_phase(programs, "forward", times, causal), _of_phase(programs, "backward", times, causal))


def executed(run: Flops) -> int:
    """Flops that a rank runs, forward and backward."""
    return (run.forward.executed or 0) + (run.backward.executed or 0)


def _of_phase(programs: Sequence[Evaluation], phase: str, times: int, causal: bool) -> FlopCount:
    each = [(_polynomials(at.account.timeline, phase, causal), at.values) for at in programs]
    return FlopCount(*(times * sum(found[which].at(values) for found, values in each) for which in range(2)))


@lru_cache(maxsize=PROGRAMS)
def _polynomials(run: Timeline, phase: str, causal: bool) -> tuple[Polynomial, Polynomial]:
    return evaluate.model_flops(run, phase, causal), evaluate.executed_flops(run, phase, causal)
