"""Arrays of priced candidates: their order, the first of it, and the set that nothing beats."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

Table = dict[str, NDArray[Any]]
Row = dict[str, Any]
BEATEN_IN: Final = ("devices", "required", "sent", "flops")  # what makes a candidate worth keeping
MARGIN: Final = ("devices", "short", "time")  # and where time is told: what is left of memory, against the step


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


def first(table: Table, by: Sequence[str]) -> Table:
    """The first row in order; `alike` counts those of the same figures.

    What fits comes before what is tight; then `by`, the smallest first; then the order of the table.
    """
    one = np.zeros(len(table["status"]), np.int64)
    found = leaders({**table, "layout": one}, by)
    return {**found, "variants": np.ones(len(found["status"]), np.int64)}


def leaders(table: Table, by: Sequence[str]) -> Table:
    """The first row of every layout, in order as `first`. variants: rows of that layout; alike: of the same figures."""
    keys = [table["status"], *(table[name] for name in by)]
    ranked = np.lexsort(keys[::-1])
    _, lead, layout = np.unique(table["layout"][ranked], return_index=True, return_inverse=True)
    same = np.ones(len(ranked), bool)
    for key in keys:
        same &= key[ranked] == key[ranked][lead][layout]
    variants, alike = np.zeros(len(lead), np.int64), np.zeros(len(lead), np.int64)
    np.add.at(variants, layout, table["variants"][ranked])
    np.add.at(alike, layout[same], table["alike"][ranked][same])
    order = np.argsort(lead)
    return {**rows_of(table, ranked[lead[order]]), "variants": variants[order], "alike": alike[order]}


def unbeaten(table: Table, beaten_in: Sequence[str] = BEATEN_IN) -> Table:
    """The rows that no other equals or beats in every one of `beaten_in`; of equal ones the first that waits least.

    `alike` of a row counts those whose figures are all the same.
    """
    figures = np.stack([table[name].astype(np.float64) for name in (*beaten_in, "idle", "status")])
    left, kept, alike = np.lexsort(figures[::-1]), [], []
    while len(left):
        lead = left[0]
        same = (figures[:, left] == figures[:, lead, None]).all(axis=0)
        kept.append(lead)
        alike.append(table["alike"][left[same]].sum())
        left = left[(figures[: len(beaten_in), left] < figures[: len(beaten_in), lead, None]).any(axis=0)]
    return {**rows_of(table, np.array(kept, np.int64)), "alike": np.array(alike, np.int64)}
