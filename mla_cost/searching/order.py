"""Arrays of priced candidates: their order, the first of it, and the set that nothing beats."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

Table = dict[str, NDArray[Any]]
Row = dict[str, Any]
BEATEN_IN: Final = ("devices", "required", "sent", "flops")  # what makes a candidate worth keeping


def rows_of(table: Mapping[str, NDArray[Any]], which: NDArray[Any]) -> Table:
    """Some rows of a table."""
    return {name: values[which] for name, values in table.items()}


def joined(tables: Sequence[Table]) -> Table:
    """Tables under one another."""
    return {name: np.concatenate([table[name] for table in tables]) for name in tables[0]}


def each(table: Table) -> list[Row]:
    """The rows of a table one by one."""
    columns = (values.tolist() for values in table.values())
    return [dict(zip(table, values, strict=True)) for values in zip(*columns, strict=True)]


def first(table: Table, by: Sequence[str], most: int) -> Table:
    """The first rows in order, each standing for all that have the same figures; `alike` counts those.

    What fits comes before what is tight; then `by`, the smallest first; then the order of the table.
    """
    keys = [table["status"], *(table[name] for name in by)]
    ranked = np.lexsort(keys[::-1])
    new = np.ones(len(ranked), bool)
    if len(ranked) > 1:
        new[1:] = np.any([key[ranked][1:] != key[ranked][:-1] for key in keys], axis=0)
    leads = np.flatnonzero(new)
    found = rows_of(table, ranked[leads][:most])
    found["alike"] = np.add.reduceat(table["alike"][ranked], leads)[:most] if len(ranked) else table["alike"]
    return found


def unbeaten(table: Table) -> Table:
    """The rows that no other equals or beats in every one of BEATEN_IN; of equal ones the first that waits least.

    `alike` of a row counts those whose figures are all the same.
    """
    figures = np.stack([table[name].astype(np.float64) for name in (*BEATEN_IN, "idle", "status")])
    left, kept, alike = np.lexsort(figures[::-1]), [], []
    while len(left):
        lead = left[0]
        same = (figures[:, left] == figures[:, lead, None]).all(axis=0)
        kept.append(lead)
        alike.append(table["alike"][left[same]].sum())
        left = left[(figures[: len(BEATEN_IN), left] < figures[: len(BEATEN_IN), lead, None]).any(axis=0)]
    return {**rows_of(table, np.array(kept, np.int64)), "alike": np.array(alike, np.int64)}
