"""Packed documents as a table: who holds, works and sends how much under every way to deal them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from rich.console import Group

from mla_cost.views import terminal
from mla_cost.views.grid import TextGrid
from mla_cost.views.times import duration
from mla_cost.views.units import sent

COLUMNS: Final = 100  # of a pipe
MOST: Final = 8  # lengths that a table tells one by one
TIME: Final = "time: attention of the busiest rank, forward and backward."


def show(answer: Mapping[str, Any]) -> None:
    """Print `Pack.to_dict`."""
    lengths = answer["lengths"]
    total = sum(lengths)
    share = 100 * answer["flops"] / answer["as_one_flops"]
    head = (
        f"{len(lengths)} documents, {total:,} tokens over sp {answer['sp']}, {answer['model']}: attention of one layer "
        f"{answer['flops'] / 1e12:,.2f} TFLOP forward, {share:.1f} % of one sequence of that length, as which a plan "
        "is priced."
    )
    timed = answer["device"] is not None
    names = ("way", "tokens", "busiest", "padding", "sent", "expanded", "latent", *("time",) * timed, "basis")
    grid = TextGrid(names, left=("way", "basis"))
    for row in answer["rows"]:
        if not row["why"]:
            balance = "-" if row["balance"] is None else f"{row['balance']:.2f}"
            counts = (f"{row['tokens']:,}", balance, f"{row['padding']:,}", f"{row['sent_tokens']:,}")
            sizes = (sent(row["expanded_bytes"]), sent(row["latent_bytes"]))
            grid.add(row["name"], *counts, *sizes, *[_time(row["seconds"])] * timed, row["basis"])
    lines = (
        "tokens, sent: of the rank with most, in tokens. busiest: its attention over the mean; padding: of all ranks.",
        "expanded, latent: GiB of one layer in forward where all heads' keys and values travel, or latents.",
    )
    told = [" ".join((*lines, *(TIME,) * timed))]
    told += [f"{row['name']}: {row['why']}" for row in answer["rows"] if row["why"]]
    told += [f"{row['name']}: ranks by document {_groups(row['groups'])}" for row in answer["rows"] if row["groups"]]
    terminal.show(Group(head, _by_length(answer), grid, *told), pipe=COLUMNS)


def _by_length(answer: Mapping[str, Any]) -> TextGrid:
    """Documents by length, the longest first."""
    timed = answer["device"] is not None
    grid = TextGrid(("length", "documents", "TFLOP each", "of all", *("time each",) * timed), left=())
    rows = answer["by_length"]
    for row in rows[:MOST]:
        shares = (f"{row['flops'] / 1e12:,.3f}", f"{row['share']:.1f} %")
        grid.add(f"{row['length']:,}", f"{row['documents']:,}", *shares, *[_time(row["seconds"])] * timed)
    if len(rows) > MOST:
        rest = rows[MOST:]
        count, share = sum(row["documents"] for row in rest), sum(row["share"] for row in rest)
        grid.add("shorter", f"{count:,}", "", f"{share:.1f} %", *[""] * timed)
    return grid


def _time(seconds: float | None) -> str:
    return "-" if seconds is None else duration(seconds)


def _groups(groups: tuple[int, ...]) -> str:
    shown = ", ".join(map(str, groups[:12]))
    return shown + ", ..." * (len(groups) > 12)
