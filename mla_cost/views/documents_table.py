"""Packed documents as a table: who holds, works and sends how much under every way to deal them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Group

from mla_cost.views import terminal
from mla_cost.views.grid import TextGrid
from mla_cost.views.units import sent


def show(answer: Mapping[str, Any]) -> None:
    """Print `Pack.to_dict`."""
    lengths = answer["lengths"]
    total = sum(lengths)
    share = 100 * answer["flops"] / answer["as_one_flops"]
    head = (
        f"{len(lengths)} documents, {total:,} tokens over sp {answer['sp']}, {answer['model']}: attention of one layer "
        f"{answer['flops'] / 1e12:,.2f} TFLOP forward, {share:.1f} % of one sequence of that length."
    )
    names = ("way", "tokens", "busiest", "padding", "sent", "expanded", "latent", "basis")
    grid = TextGrid(names, left=("way", "basis"))
    for row in answer["rows"]:
        if not row["why"]:
            balance = "-" if row["balance"] is None else f"{row['balance']:.2f}"
            counts = (f"{row['tokens']:,}", balance, f"{row['padding']:,}", f"{row['sent_tokens']:,}")
            grid.add(row["name"], *counts, sent(row["expanded_bytes"]), sent(row["latent_bytes"]), row["basis"])
    lines = (
        "tokens, sent: of the rank with most, in tokens. busiest: its attention over the mean; padding: of all ranks.",
        "expanded, latent: GiB of one layer in forward where all heads' keys and values travel, or latents.",
    )
    told = [" ".join(lines)]
    told += [f"{row['name']}: {row['why']}" for row in answer["rows"] if row["why"]]
    told += [f"{row['name']}: ranks by document {_groups(row['groups'])}" for row in answer["rows"] if row["groups"]]
    terminal.show(Group(head, grid, *told))


def _groups(groups: tuple[int, ...]) -> str:
    shown = ", ".join(map(str, groups[:12]))
    return shown + ", ..." * (len(groups) > 12)
