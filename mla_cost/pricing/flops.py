"""Flops of programs: exact ints of any size, to which no exact-integer limit applies."""

from __future__ import annotations

from collections.abc import Sequence

from mla_cost.language import evaluate
from mla_cost.language.evaluate import Evaluation
from mla_cost.language.machine import Timeline, once_per_timeline
from mla_cost.language.polynomial import Polynomial
from mla_cost.results import FlopCount, Flops

Programs = Sequence[tuple[Evaluation, int]]  # and how many equal ones stand in a row


def flops(programs: Programs, times: int, causal: bool) -> Flops:
    """What programs in a row run, all of them so many times: the micro-batches of a stage."""
    return Flops(_of_phase(programs, "forward", times, causal), _of_phase(programs, "backward", times, causal))


def executed(run: Flops) -> int:
    """Flops that a rank runs, forward and backward."""
    return (run.forward.executed or 0) + (run.backward.executed or 0)


def _of_phase(programs: Programs, phase: str, times: int, causal: bool) -> FlopCount:
    each = [(_polynomials(at.account.timeline, phase, causal), at.values, count) for at, count in programs]
    totals = (sum(count * found[which].at(values) for found, values, count in each) for which in range(2))
    return FlopCount(*(times * total for total in totals))


@once_per_timeline
def _polynomials(run: Timeline, phase: str, causal: bool) -> tuple[Polynomial, Polynomial]:
    return evaluate.model_flops(run, phase, causal), evaluate.executed_flops(run, phase, causal)
