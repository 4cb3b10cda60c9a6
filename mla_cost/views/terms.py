"""Where a number comes from, as a table for a terminal: items that add up to it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from mla_cost.results import Term
from mla_cost.views import terminal
from mla_cost.views.units import readable


def show(terms: Iterable[Term], file: Any = None) -> None:
    """Print every term to a terminal or a pipe, 80 columns suffice."""
    parts: list[RenderableType] = []
    for term in terms:
        parts += [Text(""), Text(heading(term), style="bold"), _table(term)]
    terminal.show(Group(*parts[1:]), file)


def heading(term: Term) -> str:
    """What is explained, of what."""
    of = f"{term.form}{'' if term.device is None else f' on {term.device}'}, kernel {term.kernel}"
    stage = "" if term.stage is None else f", stage {term.stage}"
    return f"{term.term}: {term.meaning}\n{of}{stage}: {readable(term.total_bytes)}"


def _table(term: Term) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1, 0, 0), show_footer=True)
    table.add_column("where", overflow="fold")
    table.add_column("what", overflow="fold", footer="total")
    table.add_column("formula", overflow="fold")
    table.add_column("bytes", justify="right", no_wrap=True, footer=f"{term.total_bytes:,}")
    for item in term.items:
        table.add_row(item.where, item.name, item.formula, f"{item.bytes:,}")
    return table
