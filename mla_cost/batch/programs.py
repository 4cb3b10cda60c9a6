"""Programs as matrices over the monomials of their symbols: figures, and every moment at which most can be alive."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from mla_cost.batch.matrices import (
    Floats,
    Folded,
    Rows,
    evaluated,
    fold,
    fold_further,
    monomials_of,
    over_others,
    rows_of,
    top,
    undominated,
)
from mla_cost.declared.kernels import KERNELS
from mla_cost.language import evaluate
from mla_cost.language.dims import Predicates, follow_where_known, following
from mla_cost.language.evaluate import Account, Tape, account_of
from mla_cost.language.machine import Timeline
from mla_cost.language.polynomial import Monomial, Polynomial, total
from mla_cost.pricing.compile import timeline
from mla_cost.pricing.evaluation import fused_workspace
from mla_cost.pricing.key import Key
from mla_cost.pricing.step_traffic import PHASES

Kinds = frozenset[str]


class TapePeak(NamedTuple):
    """The most that is alive on a tape, forward and backward together or apart. kinds: the workspace that counts."""

    tape: Tape
    kinds: Kinds = frozenset()
    apart: bool = False


class ProgramRows(NamedTuple):
    """A program as rows over `monomials`. parts: the figures, a row each, then what only the largest row counts of.

    asked: what it was compiled for, its key first. follows: symbols that it has and that follow from others.
    """

    asked: tuple[Any, ...]
    follows: tuple[str, ...]
    monomials: tuple[Monomial, ...]
    parts: tuple[Rows, ...]

    @property
    def key(self) -> Key:
        """The key of its structure."""
        key: Key = self.asked[0]
        return key


class Valued(NamedTuple):
    """A program at many points, in double precision, valid until this thread asks for the next.

    figures: a row each. most: of each part behind them the largest.
    """

    figures: Floats
    most: list[Floats]


def compiled_account(key: Key) -> Account:
    """The account of a program whose input nobody else holds; `held` gives the tapes of one whose input is held."""
    return account_of(timeline(key._replace(input_held=False)))


def held(tape: Tape, account: Account) -> Tape:
    """The tape where somebody else holds the input: the program does not free it."""
    given = account.timeline.allocations[0]
    rows: list[tuple[int, int, int | None]] = list(zip(tape.sizes, tape.signs, tape.events, strict=True))
    at = rows.index((account.of_allocation[given.number], -1, given.freed))
    sizes, signs, events = (column[:at] + column[at + 1 :] for column in (tape.sizes, tape.signs, tape.events))
    return Tape(sizes, signs, events, tape.forward - (at < tape.forward))


def program(
    asked: tuple[Any, ...],
    account: Account,
    figures: Sequence[Polynomial],
    peaks: Sequence[TapePeak],
    *,
    sizes: bool = False,
) -> ProgramRows:
    """The matrix of a program. sizes: the largest of all sizes is wanted too, before the peaks."""
    each = [over_others(size) for size in account.polynomials]
    rest = [over_others(figure) for figure in figures]
    monomials = monomials_of([*rest, *each])
    rows = rows_of(each, monomials)
    largest = [rows] if sizes else []
    for tape, kinds, apart in peaks:
        forward, backward = evaluate.course(account, tape, [*rows], kinds).phases()
        largest += [np.array(forward), np.array(backward)] if apart else [np.array(forward + backward)]
    parts = (Rows(rows_of(rest, monomials)), *(Rows(undominated(each), largest=True) for each in largest))
    return ProgramRows(asked, following(_symbols(account, asked[0].predicates, monomials)), monomials, parts)


def _symbols(account: Account, predicates: Predicates, monomials: Iterable[Monomial]) -> Iterator[str]:
    """The symbols of a program, and of the calls whose workspace is one of them."""
    yield from chain.from_iterable(monomials)
    for call in account.timeline.fused_calls:
        for dim in (*call.query, *call.key, *call.value):
            yield from predicates.size(dim).symbols()


def sums(run: Timeline, count: Callable[[Timeline, str], Polynomial]) -> dict[str, Polynomial]:
    """A count of a timeline by the phase that a plan tells it under."""
    return {phase: total(count(run, part) for part in parts) for phase, parts in PHASES.items()}


class Programs:
    """Programs folded: the values that all points share are multiplied in once."""

    def __init__(self) -> None:
        self._folded: dict[Any, Folded] = {}

    def at(self, program: ProgramRows, always: Mapping[str, float], values: dict[str, Any], size: int) -> Valued:
        """A program at points whose symbols have these values, `always` among them, which all points share."""
        values |= follow_where_known(values, program.follows)
        for call in compiled_account(program.key).timeline.fused_calls:
            values["fused_workspace"] = fused_workspace(
                KERNELS[program.key.kernel], program.key.predicates, call, values
            )
        folded = self._fold(program, always, values)
        here = {name: float(value) for name, value in values.items() if not isinstance(value, np.ndarray)}
        if any(symbol in here for monomial in folded.monomials for symbol in monomial):
            folded = fold_further(folded, here)
        result = evaluated(folded, values, size)
        figures, *moments = (result[span] for span in folded.spans)
        return Valued(figures, [top(each) for each in moments])

    def _fold(self, program: ProgramRows, always: Mapping[str, float], values: Mapping[str, Any]) -> Folded:
        known = (program.asked, tuple(always.items()))
        if known not in self._folded:
            fixed = {**always, **follow_where_known(always, program.follows, values)}
            self._folded[known] = fold(program.monomials, program.parts, fixed)
        return self._folded[known]
