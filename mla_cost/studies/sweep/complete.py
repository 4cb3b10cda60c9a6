"""Whether a file holds a whole sweep: one that was killed after its last row has nothing left to do."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from mla_cost.batch.codes import ILLEGAL, STATUSES
from mla_cost.results.csv_cells import harmless
from mla_cost.studies.sweep.result import Sweep, extra


def answered_in(sweep: Sweep, path: Path) -> int | None:
    """The number of rows of a complete file of this sweep that have an answer; None for any other file.

    Complete is a file with as many rows as the sweep has points, of which the first and the last are the sweep's.
    """
    ends = (0, len(sweep) - 1)
    found, count, answered = {}, 0, 0
    try:
        for row in _ROWS[path.suffix.lower()](path):
            if count in ends:
                found[count] = row
            answered += row.get("status") != STATUSES[ILLEGAL]
            count += 1
    except (ValueError, csv.Error):
        return None
    if count != len(sweep) or any(found[at] != _written(sweep, path, at) for at in ends):
        return None
    return answered


def _written(sweep: Sweep, path: Path, index: int) -> dict[str, Any]:
    row = sweep[index]
    if path.suffix.lower() != ".csv":
        return row
    return {name: "" if value is None else harmless(str(value)) for name, value in row.items()}


def _csv(path: Path) -> Iterator[dict[str, Any]]:
    with path.open(encoding="utf-8", newline="") as file:
        yield from csv.DictReader(file)


def _json_lines(path: Path) -> Iterator[dict[str, Any]]:
    with path.open(encoding="utf-8") as file:
        for line in file:
            row = json.loads(line)
            yield row if isinstance(row, dict) else {}


def _parquet(path: Path) -> Iterator[dict[str, Any]]:
    extra("pyarrow", "arrow")
    from pyarrow import parquet

    for batch in parquet.ParquetFile(path).iter_batches():
        yield from batch.to_pylist()


_ROWS: Final = {".csv": _csv, ".jsonl": _json_lines, ".parquet": _parquet}
