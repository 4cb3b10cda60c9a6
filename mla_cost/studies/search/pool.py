"""Candidates priced batch by batch: what ranks first, what nothing beats, what comes nearest where nothing fits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mla_cost.batch import price
from mla_cost.batch.codes import ILLEGAL, MISSING, STATUSES, TIGHT
from mla_cost.batch.cores import answers, available, can_fork, shared
from mla_cost.studies.search.options import SearchQuestion
from mla_cost.studies.search.order import (
    BEATEN_IN,
    MARGIN,
    Row,
    Table,
    each,
    first,
    joined,
    leaders,
    rows_of,
    unbeaten,
)
from mla_cost.studies.search.parallel_configs import Tally
from mla_cost.studies.search.space import Space
from mla_cost.studies.search.weight import split, weight, weights_of

MANY: Final = 20_000  # candidates: from here on a second process is worth its start


Watch = Callable[[str, int, int], None]


def unwatched(_words: str, _done: int, _total: int) -> None:
    """For a caller who wants to hear nothing."""


class Ranked(NamedTuple):
    """What pricing leaves. counts: legal candidates by status. best: of the layouts that fit the first, in order, each
    by its first variant; front: those that fit and nothing beats; margin: the same in memory left against time, where
    that is told; nearest: of those that do not fit at most one, whose status comes first and that lacks least.
    """

    counts: dict[str, int]
    best: list[Row]
    front: list[Row]
    margin: list[Row]
    nearest: list[Row]


def priced(space: Space, watch: Watch = unwatched) -> Ranked:
    """Every candidate of a space priced, program by program, on all cores where there are many.

    watch: hears what is going on, how many candidates are done, and how many there are at most.
    """
    kept, words = _Kept(space.question), f"candidates on {max(space.question.options.devices):,} devices"
    for part, tally in _parts(space, lambda done: watch(words, done, space.most)):
        kept.join(part)
        space.tally.join(tally)
    return kept.reported()


def _parts(space: Space, reported: Callable[[int], None]) -> Iterator[tuple[_Kept, Tally]]:
    numbers, workers = range(len(space.programs)), min(available(), len(space.programs))
    done = shared(len(numbers), "int64")  # of each program, written by whoever prices it
    if workers < 2 or space.most < MANY or not can_fork():
        yield from (_part(space, done, number, reported) for number in numbers)
        return
    found = answers(lambda number: _part(space, done, number), len(numbers), workers, lambda: reported(int(done.sum())))
    if found is None:  # a process failed: what it failed of is reported, or done, here
        done[:] = 0
        found = [_part(space, done, number, reported) for number in numbers]
    yield from found


def _part(
    space: Space, done: NDArray[Any], number: int, reported: Callable[[int], None] = lambda _: None
) -> tuple[_Kept, Tally]:
    """The candidates of one program, and what is refused on the way."""
    kept, tally = _Kept(space.question), Tally()
    before, space.tally = space.tally, tally
    for table in tables(space, number):
        kept.take(table)
        done[number] += len(table["config"])
        reported(int(done.sum()))
    space.tally = before
    return kept, tally


def tables(space: Space, number: int) -> Iterator[Table]:
    """The legal candidates of a program with their figures, batch by batch."""
    question, program = space.question, space.programs[number]
    for rows in space.batches(number):
        columns = space.columns(rows)
        composed = price(question.model, question.device, program.form, program.settings, columns, "fitting")
        table = _table(space, rows, composed)
        illegal = table["status"] == ILLEGAL
        if illegal.any():
            reason = composed.reason_of(int(illegal.argmax()))
            space.tally.add(program.form, "candidates", int(illegal.sum()), reason)
        yield rows_of(table, np.flatnonzero(~illegal))


def _table(space: Space, rows: Table, composed: Any) -> Table:
    at = {name: values[rows["config"]] for name, values in space.at.items()}
    rates, most = weights_of(space.question.device), composed.most
    inside, between = split(rates, space.question.settings.axis_order, at, most.by_axis)
    return {
        **rows,
        **{name: at[name] for name in ("devices", "idle", "layout")},
        "inside": inside,
        "between": between,
        "weight": weight(rates, most.executed, inside, between, at["idle"]),
        "time": composed["seconds"],
        "utilisation": composed["model_flops_utilisation"],
        "status": composed.status,
        "required": composed["required_bytes"],
        "short": composed["required_bytes"] - composed["usable_bytes"],
        "least": composed["least_headroom_bytes"],
        "sent": most.wire_bytes,
        "flops": most.executed,
        **most.by_axis,
        "alike": np.ones(len(composed.status), np.int64),
        "variants": np.ones(len(composed.status), np.int64),
    }


class _Kept:
    """What is kept of the tables that pass."""

    def __init__(self, question: SearchQuestion) -> None:
        self.options = question.options
        self.counts: Counter[str] = Counter()
        self.tables: dict[str, Table] = {}

    def take(self, table: Table) -> None:
        """Count a table and keep its best."""
        self.counts.update({STATUSES[code]: count for code, count in zip(*_counted(table["status"]), strict=True)})
        fitting, missing = (rows_of(table, np.flatnonzero(fits)) for fits in _fits(table))
        self._merge("best", fitting)
        self._merge("front", fitting)
        self._merge("margin", rows_of(fitting, np.flatnonzero(fitting["time"] != MISSING)))
        self._merge("nearest", missing)

    def join(self, other: _Kept) -> None:
        """Take what another one kept, as if its tables had passed here."""
        self.counts.update(other.counts)
        for name, rows in other.tables.items():
            self._merge(name, rows)

    def _merge(self, name: str, rows: Table) -> None:
        before = [self.tables[name]] if name in self.tables else []
        self.tables[name] = self._best(name, joined([*before, rows]))

    def _best(self, name: str, rows: Table) -> Table:
        order = self.options.order
        if name in {"front", "margin"}:
            return unbeaten(rows, BEATEN_IN if name == "front" else MARGIN)
        if name == "nearest":
            return first(rows, ("short", *order))
        return leaders(rows, order)

    def reported(self) -> Ranked:
        """All that was kept."""
        counts = {status: self.counts[status] for status in STATUSES if self.counts[status]}
        kept = (each(self.tables.get(name, {})) for name in ("best", "front", "margin", "nearest"))
        best, front, margin, nearest = kept
        return Ranked(counts, best[: self.options.top], front, margin, nearest)


def _counted(codes: Any) -> tuple[list[int], list[int]]:
    values, numbers = np.unique(codes, return_counts=True)
    return values.tolist(), numbers.tolist()


def _fits(table: Table) -> tuple[Any, Any]:
    return table["status"] <= TIGHT, table["status"] > TIGHT
