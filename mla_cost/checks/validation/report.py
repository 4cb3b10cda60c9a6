"""What a validation answers: one row per check and cell, schema mla-cost/validate/1."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

SCHEMA = "mla-cost/validate/1"
Status = Literal["agrees", "disagrees", "by construction"]
STATUSES: tuple[Status, ...] = ("agrees", "disagrees", "by construction")


class CheckRow(NamedTuple):
    """One check on one cell. by construction: the two sides are equal because one states what the other does."""

    check: str
    cell: str
    status: Status
    detail: str


def row(check: str, cell: str, fault: str, detail: str = "", *, by_construction: bool = False) -> CheckRow:
    """A row that disagrees where there is a fault to name. A disagreement is one whoever states the figure."""
    if fault:
        return CheckRow(check, cell, "disagrees", fault)
    return CheckRow(check, cell, "by construction" if by_construction else "agrees", detail)


@dataclass(frozen=True)
class Report:
    """Every row, and the seconds of each stage. left_out: what no row speaks of."""

    rows: tuple[CheckRow, ...]
    seconds: Mapping[str, float] = field(default_factory=dict)
    left_out: tuple[str, ...] = ()

    @property
    def disagreements(self) -> tuple[CheckRow, ...]:
        """The rows to settle."""
        return tuple(row for row in self.rows if row.status == "disagrees")

    def counts(self, check: str | None = None) -> dict[Status, int]:
        """Rows of each status, of one check or of all."""
        found = Counter(row.status for row in self.rows if check in (None, row.check))
        return {status: found[status] for status in STATUSES}

    def checks(self) -> list[str]:
        """The checks, in the order they were made."""
        return list(dict.fromkeys(row.check for row in self.rows))

    def cells(self) -> int:
        """Distinct cells."""
        return len({row.cell for row in self.rows})

    def to_dict(self) -> dict[str, Any]:
        """The JSON object as plain dicts and lists."""
        return {
            "schema": SCHEMA,
            "counts": self.counts(),
            "cells": self.cells(),
            "seconds": {stage: round(seconds, 1) for stage, seconds in self.seconds.items()},
            "left_out": list(self.left_out),
            "rows": [row._asdict() for row in self.rows],
        }

    def to_json(self) -> str:
        """The JSON text that `mla-cost validate --format json` prints."""
        return json.dumps(self.to_dict(), indent=2)
