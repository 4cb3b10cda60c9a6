"""The candidates of a search priced batch by batch: what ranks first, what nothing beats, what comes nearest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mla_cost import composing
from mla_cost.searching.options import Question
from mla_cost.searching.order import Table, first, joined, rows_of, unbeaten
from mla_cost.searching.places import Place, Tally, places
from mla_cost.searching.programs import (
    Program,
    one_rank_twins,
    programs,
    refused_degrees,
    refused_in_pipelines,
    refused_policies,
)
from mla_cost.settings import PlanSettings

ROWS: Final = 2**17  # of one batch
Row = dict[str, Any]
_VARIED: Final = ("tp", "sp", "pp", "ep", "dp", "virtual_stages", "micro_batch", "micro_batches")


class Space(NamedTuple):
    """All candidates: every program at every place, with every way to shard and every policy.

    unpiped: the ways to shard that no pipeline has, with the reason.
    """

    programs: Sequence[Program]
    places: Sequence[Place]
    shardings: Sequence[str]
    policies: Sequence[str]
    unpiped: Mapping[str, str]

    def settings(self, row: Row) -> PlanSettings:
        """The plan of a row of a table."""
        program, place = self.programs[row["program"]], self.places[row["place"]]
        choices = {"sharding": self.shardings[row["sharding"]], "remat": self.policies[row["policy"]]}
        return program.settings.model_copy(update={**place._asdict(), **choices})


class Priced(NamedTuple):
    """What pricing leaves. best: the first that fit, in order; front: those that fit and nothing beats.

    nearest: of those that do not fit, at most one, whose status comes first and that lacks least.
    """

    counts: dict[str, int]
    best: list[Row]
    front: list[Row]
    nearest: list[Row]


def space_of(question: Question, tally: Tally) -> Space:
    """The space of a search; what is forbidden outright is tallied."""
    found, refused = programs(question)
    everywhere = places(question, tally)
    choices = question.values("sharding"), question.values("remat")
    space = Space(found, everywhere, *choices, refused_in_pipelines(question))
    each = len(everywhere) * len(space.shardings) * len(space.policies)
    for pair, reason in refused.items():
        tally.add(pair, "candidates", each, reason)
    return space


def priced(question: Question, space: Space, tally: Tally) -> Priced:
    """Every candidate priced."""
    kept = _Kept(question)
    for table, composed in _tables(question, space, tally):
        kept.take(table)
        refused = np.flatnonzero(table["status"] == _code("illegal"))
        if len(refused):
            form = space.programs[int(table["program"][0])].form
            tally.add(form, "candidates", len(refused), composed.reason_of(int(refused[0])))
    return kept.told()


class _Kept:
    """What is kept of the tables that pass."""

    def __init__(self, question: Question) -> None:
        self.question = question
        self.counts: Counter[str] = Counter()
        self.tables: dict[str, Table] = {}

    def take(self, table: Table) -> None:
        """Count a table and keep its best."""
        codes, numbers = np.unique(table["status"], return_counts=True)
        self.counts.update({composing.STATUSES[code]: int(count) for code, count in zip(codes, numbers, strict=True)})
        order, most = self.question.options.order, self.question.options.top
        fitting = np.flatnonzero(table["status"] <= _code("tight"))
        self._merge("best", rows_of(table, fitting), lambda rows: first(rows, order, most))
        self._merge("front", rows_of(table, fitting), unbeaten)
        others = rows_of(table, np.flatnonzero((table["status"] > _code("tight")) & (table["required"] >= 0)))
        self._merge("nearest", others, lambda rows: first(rows, ("short", *order), 1))

    def _merge(self, name: str, rows: Table, kept: Callable[[Table], Table]) -> None:
        before = [self.tables[name]] if name in self.tables else []
        self.tables[name] = kept(joined([*before, rows]))

    def told(self) -> Priced:
        """All that was kept."""
        return Priced(dict(self.counts), *(_each(self.tables.get(name, {})) for name in ("best", "front", "nearest")))


def _code(status: str) -> int:
    return composing.STATUSES.index(status)


def _each(table: Table) -> list[Row]:
    """The rows of a table one by one."""
    names = list(table)
    return [
        dict(zip(names, values, strict=True)) for values in zip(*(table[name].tolist() for name in names), strict=True)
    ]


# ---- batches


def _tables(question: Question, space: Space, tally: Tally) -> Iterator[tuple[Table, Any]]:
    """Every batch with its figures, and the engine's answer that they come from."""
    at = _columns(space.places)
    for number, program in enumerate(space.programs):
        for rows in _batches(question, space, number, at, tally):
            columns = {name: at[name][rows["place"]] for name in _VARIED}
            columns["sharding"] = np.array(space.shardings)[rows["sharding"]]
            columns["remat"] = np.array(space.policies)[rows["policy"]]
            columns["pipeline_layout"] = np.array(
                [space.places[place].pipeline_layout for place in rows["place"]], object
            )
            composed = composing.price(question.model, question.device, program.form, program.settings, columns)
            yield _table(rows, at, composed), composed


def _table(rows: Table, at: Table, composed: Any) -> Table:
    return {
        **rows,
        "devices": at["devices"][rows["place"]],
        "idle": at["idle"][rows["place"]],
        "status": composed.status,
        "required": composed.required_bytes,
        "short": composed.required_bytes - composed.usable_bytes,
        "sent": composed.wire_bytes,
        "flops": composed.flops_executed,
        "alike": np.ones(len(composed.status), np.int64),
    }


def _columns(everywhere: Sequence[Place]) -> Table:
    """The places as arrays."""
    return {name: np.array([getattr(place, name) for place in everywhere]) for name in (*_VARIED, "devices", "idle")}


def _batches(question: Question, space: Space, number: int, at: Table, tally: Tally) -> Iterator[Table]:
    """The candidates of a program without those that cannot be, in batches."""
    shardings, policies = len(space.shardings), _policies(question, space, number, tally)
    here = _places(question, space, number, at, tally)
    step = max(1, ROWS // max(1, shardings * len(policies)))
    for start in range(0, len(here), step):
        rows = _product(here[start : start + step], shardings, policies)
        rows = _without_refused_shardings(space, rows, at, tally)
        if len(rows["place"]):
            yield {"program": np.full(len(rows["place"]), number), **rows}


def _product(where: NDArray[Any], shardings: int, policies: NDArray[Any]) -> Table:
    each = shardings * len(policies)
    return {
        "place": np.repeat(where, each),
        "sharding": np.tile(np.repeat(np.arange(shardings), len(policies)), len(where)),
        "policy": np.tile(policies, len(where) * shardings),
    }


def _places(question: Question, space: Space, number: int, at: Table, tally: Tally) -> NDArray[Any]:
    """The places at which the program can run. On one rank of a sequence one scheme of a form stands for all."""
    program, each = space.programs[number], len(space.shardings) * len(space.policies)
    kept = np.ones(len(space.places), bool)
    if number in one_rank_twins(space.programs):
        kept = at["sp"] > 1
    pairs = np.unique(np.stack([at["tp"][kept], at["sp"][kept]]), axis=1).T.tolist()
    for (tp, sp), reason in refused_degrees(question, program, map(tuple, pairs)).items():
        refused = kept & (at["tp"] == tp) & (at["sp"] == sp)
        tally.add(f"{program.form} with {program.scheme}", "candidates", int(refused.sum()) * each, reason)
        kept &= ~refused
    return np.flatnonzero(kept)


def _policies(question: Question, space: Space, number: int, tally: Tally) -> NDArray[Any]:
    """The policies that the program can have."""
    refused = refused_policies(question, space.programs[number])
    for reason in refused.values():
        tally.add("remat", "candidates", len(space.places) * len(space.shardings), reason)
    return np.array([at for at, policy in enumerate(space.policies) if policy not in refused], np.int64)


def _without_refused_shardings(space: Space, rows: Table, at: Table, tally: Tally) -> Table:
    """Rows without the ways to shard that a pipeline does not have."""
    for sharding, reason in space.unpiped.items():
        refused = (rows["sharding"] == space.shardings.index(sharding)) & (at["pp"][rows["place"]] > 1)
        tally.add("sharding", "candidates", int(refused.sum()), reason)
        rows = rows_of(rows, np.flatnonzero(~refused))
    return rows
