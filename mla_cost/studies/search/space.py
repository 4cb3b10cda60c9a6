"""The candidates of a search: every program at every config, with every way to shard and every recomputation policy."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from mla_cost.batch.points import Coded
from mla_cost.errors import InputError
from mla_cost.inputs.settings import PlanSettings
from mla_cost.studies.search.options import SearchQuestion
from mla_cost.studies.search.order import Row, Table, rows_of
from mla_cost.studies.search.parallel_configs import Tally, parallel_configs
from mla_cost.studies.search.programs import (
    one_rank_twins,
    programs,
    refused_degrees,
    refused_in_pipelines,
    refused_policies,
)

ROWS: Final = 2**17  # of one batch, so that memory is bounded
MOST: Final = 20_000_000  # candidates: some minutes
DEGREES: Final = ("tp", "sp", "pp", "ep", "etp", "dp", "virtual_stages", "micro_batch", "micro_batches")


class Space:
    """What there is to price. A row names a candidate by places in `programs`, `parallel_configs` and so on.

    tally: what rules forbid; it is complete when every batch has been taken. Raises InputError where MOST is exceeded.
    """

    def __init__(self, question: SearchQuestion) -> None:
        self.question = question
        self.tally = Tally()
        self.programs, refused = programs(question)
        self.parallel_configs = parallel_configs(question, self.tally)
        self.shardings = question.values("sharding")
        self.policies = question.values("remat")
        self.unpiped = refused_in_pipelines(question)
        for pair, reason in refused.items():
            self.tally.add(pair, "candidates", len(self.parallel_configs) * self._each, reason)
        self._require()

    @property
    def most(self) -> int:
        """No fewer than there are candidates."""
        return len(self.programs) * len(self.parallel_configs) * self._each

    def _require(self) -> None:
        count = self.most
        if count > MOST:
            allowed = (
                f"at most {MOST:,}; narrow an axis such as remat, sharding, pp or micro_batch, or ask for fewer devices"
            )
            raise InputError(f"up to {count:,} candidates", field="search", allowed=allowed)

    @property
    def _each(self) -> int:
        """Candidates of a program at one config."""
        return len(self.shardings) * len(self.policies)

    @cached_property
    def at(self) -> Table:
        """The parallel_configs as arrays."""
        names = (*DEGREES, "devices", "idle")
        found: Table = {name: np.array([getattr(config, name) for config in self.parallel_configs]) for name in names}
        layouts: dict[tuple[Any, ...], int] = {}
        known = [layouts.setdefault(config.layout, len(layouts)) for config in self.parallel_configs]
        return {**found, "layout": np.array(known, np.int64)}

    @cached_property
    def _layouts(self) -> Coded:
        config = {
            name: at
            for at, name in enumerate(dict.fromkeys(config.pipeline_layout for config in self.parallel_configs))
        }
        return Coded(tuple(config), np.array([config[each.pipeline_layout] for each in self.parallel_configs]))

    def settings(self, row: Row) -> PlanSettings:
        """The plan of a row."""
        program, config = self.programs[row["program"]], self.parallel_configs[row["config"]]
        choices = {"sharding": self.shardings[row["sharding"]], "remat": self.policies[row["policy"]]}
        return program.settings.model_copy(update={**config.stated, **choices})

    def columns(self, rows: Table) -> dict[str, Any]:
        """What rows differ in, for the array engine."""
        found: dict[str, Any] = {name: self.at[name][rows["config"]] for name in DEGREES}
        layouts = Coded(self._layouts.values, self._layouts.codes[rows["config"]])
        choices = {"sharding": Coded(self.shardings, rows["sharding"]), "remat": Coded(self.policies, rows["policy"])}
        return {**found, **choices, "pipeline_layout": layouts}

    # ---- batches

    def batches(self, number: int) -> Iterator[Table]:
        """All candidates of a program, by its place, but those that a rule forbids."""
        here = self._configs(number)
        policies = self._policies(number, len(here))
        step = max(1, ROWS // self._each)
        for start in range(0, len(here), step):
            rows = self._piped(_product(here[start : start + step], len(self.shardings), policies))
            if len(rows["config"]):
                yield {"program": np.full(len(rows["config"]), number), **rows}

    def _configs(self, number: int) -> NDArray[Any]:
        """The configs at which a program runs. On one rank of a sequence one scheme of a form stands for all."""
        program, at = self.programs[number], self.at
        kept = at["sp"] > 1 if number in one_rank_twins(self.programs) else np.ones(len(self.parallel_configs), bool)
        pairs = np.unique(np.stack([at["tp"][kept], at["sp"][kept]]), axis=1).T.tolist()
        for (tp, sp), reason in refused_degrees(self.question, program, map(tuple, pairs)).items():
            refused = kept & (at["tp"] == tp) & (at["sp"] == sp)
            name = f"{program.form} with {program.scheme}"
            self.tally.add(name, "candidates", int(refused.sum()) * self._each, reason)
            kept &= ~refused
        return np.flatnonzero(kept)

    def _policies(self, number: int, count: int) -> NDArray[Any]:
        """The policies that a program at so many parallel_configs can have."""
        refused = refused_policies(self.question, self.programs[number])
        for reason in refused.values():
            self.tally.add("remat", "candidates", count * len(self.shardings), reason)
        return np.array([at for at, policy in enumerate(self.policies) if policy not in refused], np.int64)

    def _piped(self, rows: Table) -> Table:
        """Rows without the ways to shard that a pipeline does not have."""
        for sharding, reason in self.unpiped.items():
            refused = (rows["sharding"] == self.shardings.index(sharding)) & (self.at["pp"][rows["config"]] > 1)
            self.tally.add("sharding", "candidates", int(refused.sum()), reason)
            rows = rows_of(rows, np.flatnonzero(~refused))
        return rows


def _product(where: NDArray[Any], shardings: int, policies: NDArray[Any]) -> Table:
    each = shardings * len(policies)
    return {
        "config": np.repeat(where, each),
        "sharding": np.tile(np.repeat(np.arange(shardings), len(policies)), len(where)),
        "policy": np.tile(policies, len(where) * shardings),
    }
