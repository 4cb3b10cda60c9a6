"""Published figures beside predictions: what matches, what differs and why, and what is not modelled.

`evidence()` replays every row of `configs/evidence/` and answers what the paper leaves open.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from typing import Any, TypeVar

from mla_cost.checks.evidence import counts, fused, regimes, regression
from mla_cost.checks.evidence import sent as accounted
from mla_cost.checks.evidence.rows import Outcome, counted, replay
from mla_cost.checks.evidence.source import SOURCES, Source, load
from mla_cost.errors import InputError, nearest

SCHEMA = "mla-cost/evidence/1"
STATES = ("matches", "differs", "not-modelled")
IN_ROWS = Outcome._fields[:10]
BESIDE = ("unit", "cite", "gates", "bound", "use", "device")


Watch = Callable[[str, int, int], None]  # what is going on, how much of it is done, of how much
Each = TypeVar("Each")


class Evidence:
    """Every row replayed, and the answers beside them, worked out when they are first read. Bytes are for one rank.

    watch: told what is going on, how much is done, and of how much. only: of these sources, not of all.
    """

    def __init__(
        self, executor: bool = False, watch: Watch = lambda _words, _done, _total: None, only: Sequence[str] = ()
    ) -> None:
        self._watch = watch
        self._sources = [load(name) for name in only or SOURCES]
        self.sources = {**{source.name: source.title for source in self._sources}, counts.NAME: counts.TITLE}
        asked = [(source, row) for source in self._sources for row in source.rows]
        replayed = (replay(source, row, executor) for source, row in asked)
        self.rows = (*self._told("published figures", replayed, len(asked)), *(() if only else counted()))

    def _told(self, words: str, found: Iterable[Each], total: int = 0) -> Iterator[Each]:
        for done, each in enumerate(found):
            self._watch(words, done, total)
            yield each

    @cached_property
    def fused(self) -> fused.Search:
        """What the fused figure could have meant."""
        return _fused(self._sources)

    @cached_property
    def shares(self) -> tuple[regression.Share, ...]:
        """What the larger peak is made of."""
        return tuple(self._told("what the larger peak is made of", regression.shares()))

    @cached_property
    def boundaries(self) -> tuple[regimes.Boundary, ...]:
        """Where one form is smaller than another, in the latent rank."""
        return tuple(self._told("where absorbed is smaller", regimes.boundaries(), regimes.how_many()))

    @cached_property
    def sequences(self) -> tuple[regimes.Sequence, ...]:
        """The same in the sequence length."""
        return tuple(self._told("where absorbed saves less", regimes.sequences()))

    @cached_property
    def smaller(self) -> tuple[regimes.Smaller, ...]:
        """The same over the catalogue's models."""
        return tuple(self._told("models for which absorbed is smaller", regimes.smaller()))

    @cached_property
    def gather(self) -> regimes.Gather:
        """Where gathering sends less."""
        return regimes.gather()

    @cached_property
    def sent(self) -> tuple[accounted.PublishedSent, ...]:
        """What forward sends, counted three ways."""
        return tuple(accounted.sent(self._sources))

    @property
    def counts(self) -> dict[str, int]:
        """How many rows are in each state."""
        return {state: sum(row.status == state for row in self.rows) for state in STATES}

    def listed(self) -> dict[str, Any]:
        """What a table needs of the JSON object: the rows, without the questions that take longer."""
        return {
            "schema": SCHEMA,
            "counts": self.counts,
            "rows": [{**_picked(row), **{name: getattr(row, name) for name in BESIDE}} for row in self.rows],
            "sent": [found._asdict() for found in self.sent],
        }

    def to_dict(self) -> dict[str, Any]:
        """The JSON object."""
        return {
            **self.listed(),
            "fused": _search(self.fused),
            "regression": [share._asdict() for share in self.shares],
            "boundaries": [boundary._asdict() for boundary in self.boundaries],
            "sequence_boundaries": [boundary._asdict() for boundary in self.sequences],
            "smaller": [smaller._asdict() for smaller in self.smaller],
            "gather": self.gather._asdict(),
        }

    def to_json(self) -> str:
        """The JSON text that `mla-cost evidence --format json` prints."""
        return json.dumps(self.to_dict(), indent=2)


def evidence(
    executor: bool = False, watch: Watch = lambda _words, _done, _total: None, only: Sequence[str] = ()
) -> Evidence:
    """Replay every published figure.

    executor: also run the forms on real ranks for the rows about numbers (needs torch, a quarter of a minute).
    watch, only: as `Evidence`.
    Raises `mla_cost.errors.InputError`: a file that states what its source does not, no such source, or torch is
    missing.
    """
    for name in only:
        if name not in SOURCES:
            raise InputError(
                "no such source of published figures", field="only", value=name, allowed=", ".join(SOURCES),
                nearest=nearest(name, SOURCES),
            )  # fmt: skip
    return Evidence(executor, watch, only)


def beside(name: str) -> tuple[Outcome, ...]:
    """The published rows beside which a plan stands, replayed. name: a source and how their ids begin: paper/table-2.

    Raises:
        InputError: no such source, or none of its rows begins so.

    """
    given, _, start = name.partition("/")
    if given not in SOURCES:
        raise InputError(
            "no such source of published figures", field="published", value=name, allowed=", ".join(SOURCES),
            nearest=nearest(given, SOURCES),
        )  # fmt: skip
    source = load(given)
    rows = [row for row in source.rows if start and row.id.startswith(start)]
    if not rows:
        begin = sorted({"-".join(row.id.split("-")[:2]) for row in source.rows})
        raise InputError(
            f"no row of {given} begins so", field="published", value=name,
            allowed=", ".join(f"{given}/{each}" for each in begin), nearest=nearest(start, begin),
        )  # fmt: skip
    return tuple(replay(source, row, executor=False) for row in rows)


def _fused(sources: list[Source]) -> fused.Search:
    found = ((source, row) for source in sources for row in source.rows if row.how == "candidates")
    source, row = next(found)
    assert isinstance(row.published, float)
    return fused.search(source.plan(row), row.grid, row.published)


def _picked(row: Outcome) -> dict[str, Any]:
    """The fields of the schema; counted bytes and elements as whole numbers."""
    picked = {name: getattr(row, name) for name in IN_ROWS}
    if row.unit in {"bytes", "elements"}:
        picked |= {name: int(picked[name]) for name in ("published", "predicted") if picked[name] is not None}
    return picked


def _search(found: fused.Search) -> dict[str, Any]:
    tiers = {"as_measured": found.as_measured, "beyond": found.beyond}
    return {
        "published_gb": found.published,
        "in_score_matrices": found.in_score_matrices,
        **{
            name: {
                "priced": len(tier.candidates),
                "within_5_percent": [candidate._asdict() for candidate in tier.near],
                "nearest": [candidate._asdict() for candidate in tier.nearest],
                "whole_numbers_from_10_to_30_hit": tier.hits,
            }
            for name, tier in tiers.items()
        },
    }
