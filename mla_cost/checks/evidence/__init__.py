"""Published figures beside predictions: what matches, what differs and why, and what is not modelled.

`evidence()` replays every row of `configs/evidence/` and answers what the paper leaves open.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from mla_cost.checks.evidence import counts, fused, regimes, regression
from mla_cost.checks.evidence import sent as accounted
from mla_cost.checks.evidence.rows import Outcome, counted, replay
from mla_cost.checks.evidence.source import SOURCES, Source, load
from mla_cost.errors import InputError, nearest

SCHEMA = "mla-cost/evidence/1"
STATES = ("matches", "differs", "not-modelled")
IN_ROWS = Outcome._fields[:10]


@dataclass(frozen=True)
class Evidence:
    """Every row replayed, and the answers beside them. All bytes are for one rank."""

    sources: dict[str, str]
    rows: tuple[Outcome, ...]
    fused: fused.Search
    shares: tuple[regression.Share, ...]
    boundaries: tuple[regimes.Boundary, ...]
    sequences: tuple[regimes.Sequence, ...]
    smaller: tuple[regimes.Smaller, ...]
    gather: regimes.Gather
    sent: tuple[accounted.PublishedSent, ...]

    @property
    def counts(self) -> dict[str, int]:
        """How many rows are in each state."""
        return {state: sum(row.status == state for row in self.rows) for state in STATES}

    def to_dict(self) -> dict[str, Any]:
        """The JSON object."""
        return {
            "schema": SCHEMA,
            "counts": self.counts,
            "rows": [{**_picked(row), "unit": row.unit, "cite": row.cite, "gates": row.gates} for row in self.rows],
            "fused": _search(self.fused),
            "regression": [share._asdict() for share in self.shares],
            "boundaries": [boundary._asdict() for boundary in self.boundaries],
            "sequence_boundaries": [boundary._asdict() for boundary in self.sequences],
            "smaller": [smaller._asdict() for smaller in self.smaller],
            "gather": self.gather._asdict(),
            "sent": [found._asdict() for found in self.sent],
        }

    def to_json(self) -> str:
        """The JSON text that `mla-cost evidence --format json` prints."""
        return json.dumps(self.to_dict(), indent=2)


def evidence(executor: bool = False) -> Evidence:
    """Replay every published figure.

    executor: also run the forms on real ranks for the rows about numbers (needs torch, a quarter of a minute).
    Raises `mla_cost.errors.InputError`: a file that states what its source does not, or torch is missing.
    """
    sources = [load(name) for name in SOURCES]
    return Evidence(
        sources={**{source.name: source.title for source in sources}, counts.NAME: counts.TITLE},
        rows=(*(replay(source, row, executor) for source in sources for row in source.rows), *counted()),
        fused=_fused(sources),
        shares=regression.shares(),
        boundaries=tuple(regimes.boundaries()),
        sequences=tuple(regimes.sequences()),
        smaller=tuple(regimes.smaller()),
        gather=regimes.gather(),
        sent=tuple(accounted.sent(sources)),
    )


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
