"""A report as text: counts of every check, then each disagreement in full."""

from __future__ import annotations

from typing import Any, Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from mla_cost.checks.validation.report import STATUSES, Report
from mla_cost.views import terminal

_CONSTRUCTION: Final = "by construction: one side states what the other does, which is no evidence and counts as none."


def report_table(report: Report, *, notes: bool = True) -> RenderableType:
    """The counts, what disagrees and, with notes, what was left out and how long each stage took."""
    counts = report.counts()
    parts: list[RenderableType] = [
        Text(f"{report.cells():,} cells; {', '.join(f'{counts[status]:,} {status}' for status in STATUSES)}", "bold"),
        *([Text(_CONSTRUCTION, "dim")] if notes else []),
        _counts(report),
        *(Text(f"{row.check}: {row.cell}\n  {row.detail}", "red") for row in report.disagreements),
        *(Text(f"left out: {text}", "dim") for text in report.left_out if notes),
    ]
    if report.seconds and notes:
        parts.append(Text(", ".join(f"{stage} {seconds:.0f} s" for stage, seconds in report.seconds.items()), "dim"))
    return Group(*parts)


def _counts(report: Report) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("check")
    for status in STATUSES:
        table.add_column(status, justify="right")
    for check in report.checks():
        counts = report.counts(check)
        table.add_row(check, *(f"{counts[status]:,}" if counts[status] else "-" for status in STATUSES))
    return table


def show(report: Report, file: Any = None, *, notes: bool = True) -> None:
    """Print the report: colour only in a terminal that wants it, 80 columns suffice."""
    terminal.show(report_table(report, notes=notes), file)
