"""Rows as text: CSV, Markdown, JSON and a table for a terminal. A row maps column names to ints, texts or None."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from mla_cost.views.units import gib, mib

Row = Mapping[str, Any]
STYLES: Final = {"fits": "green", "tight": "yellow", "oom": "red", "unsupported": "magenta", "illegal": "magenta"}
SHOWN: Final = (
    ("saved_bytes", "saved", gib),
    ("allocated_peak_bytes", "alloc.", gib),
    ("wire_bytes", "sent", mib),
    ("headroom_bytes", "left", gib),
)


def csv_text(columns: Sequence[str], rows: Iterable[Row]) -> str:
    """CSV with a heading; None is empty."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(["" if row[name] is None else row[name] for name in columns] for row in rows)
    return text.getvalue()


def markdown_text(columns: Sequence[str], rows: Iterable[Row]) -> str:
    """A table of GitHub's Markdown; numbers to the right, with thousands separated."""
    found = list(rows)
    right = [any(isinstance(row[name], int) for row in found) for name in columns]
    lines = [_line(columns), _line("---:" if number else "---" for number in right)]
    lines += [_line(_cell(row[name]) for name in columns) for row in found]
    return "\n".join(lines) + "\n"


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value).replace("|", "\\|")


def show(settings: Sequence[str], rows: Sequence[Row], left_out: int, sent: str, file: Any = None) -> None:
    """Print rows as a table: what varies, the names that vary, GiB, MiB sent, verdict. sent: in what time."""
    console = Console(file=file)
    if not console.is_terminal:
        console.width = max(console.width, 80)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1, 0, 0))
    for name in settings:
        number = any(isinstance(row[name], int) for row in rows)
        table.add_column(name.removeprefix("dims."), justify="right" if number else "left", no_wrap=True)
    for _, name, _ in SHOWN:
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    for row in rows:
        cells = [_cell(row[name]) for name in settings] + [text(row[name]) for name, _, text in SHOWN]
        table.add_row(*cells, Text(row["status"], STYLES.get(row["status"], "")))
    console.print(table, highlight=False)
    console.print(Text(f"GiB on one rank (sent: MiB, {sent}; left: usable less required).", style="dim"))
    _reasons(console, rows)
    if left_out:
        console.print(Text(f"{left_out:,} more rows: --output FILE.csv writes all of them.", style="dim"))


def _reasons(console: Console, rows: Iterable[Row]) -> None:
    for reason in dict.fromkeys(row["reason"] for row in rows if row["reason"]):
        refused = next(row["status"] for row in rows if row["reason"] == reason)
        console.print(Text(f"{refused}: {reason}"), highlight=False)
