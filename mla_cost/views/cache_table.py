"""Caches as a table: bytes of a token, a sequence, a batch, and the sequences that fit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group

from mla_cost.views import terminal
from mla_cost.views.grid import TextGrid
from mla_cost.views.units import readable


def show(rows: Sequence[Mapping[str, Any]], context: int, batch: int) -> None:
    """Print rows of `CacheRow.to_dict`."""
    fits = any(row["fits"] for row in rows)
    names = ("model", "dtype", "bytes/token", f"{context:,} tokens", f"x {batch}", *(["fit"] if fits else []), "basis")
    grid = TextGrid(names, left=("model", "dtype", "basis"))
    for row in rows:
        amount = f"{row['bytes_per_token']:,.2f}".removesuffix(".00")
        own = [_fit(row["fits"])] if fits else []
        sizes = readable(row["sequence_bytes"]), readable(row["batch_bytes"])
        grid.add(row["model"], row["dtype"], amount, *sizes, *own, row["basis"])
    terminal.show(Group(grid, *_lines(rows)))


def _fit(fits: Mapping[str, Any] | None) -> str:
    return "-" if fits is None or fits["sequences"] is None else f"{fits['sequences']:,}"


def _lines(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    reported = []
    if len(rows) == 1:
        (row,) = rows
        for entry in row["entries"]:
            each = "every token" if entry["tokens"] == 1 else f"every {entry['tokens']} tokens"
            reported.append(f"{entry['layers']} layers x {entry['bytes']:,} bytes of {each}: {entry['what']}")
        reported += [f"{row['per_sequence_bytes']:,} bytes a sequence beside"] * bool(row["per_sequence_bytes"])
        reported += [f"note: {row['notes']}"] * bool(row["notes"]) + [f"source: {row['source']}"]
        reported += [_beside(row["fits"])] if row["fits"] else []
    reported.append(
        "Bytes of one device; a latent lies whole on each tensor-parallel rank. bf16 unless dtype says otherwise."
    )
    if any(row["fits"] for row in rows):
        reported.append("fit: sequences beside the weights, estimated; activations, pages and graphs are left out.")
    return reported


def _beside(fits: Mapping[str, Any]) -> str:
    if fits["sequences"] is None:
        return f"fit: {fits['why']}"
    usable, held = readable(fits["usable_bytes"]), readable(fits["weight_bytes"])
    return f"{usable} usable on {fits['device']} less {held} of weights (tp {fits['ranks']})"
