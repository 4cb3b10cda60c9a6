"""Rows as an HTML table, for notebooks: every text escaped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any, Final

MOST: Final = 60  # rows shown


def table(columns: Sequence[str], rows: Sequence[Mapping[str, Any]], total: int | None = None) -> str:
    """A table of rows; columns that no row has a value in are left out. total: how many rows there are in all.

    >>> table(("form", "bytes"), [{"form": "<b>", "bytes": 1024}]).partition("<tbody>")[2]
    '<tr><td>&lt;b&gt;</td><td align="right">1,024</td></tr></tbody></table>'
    """
    shown = rows[:MOST]
    names = [name for name in columns if any(row.get(name) not in (None, "") for row in shown)]
    head = "".join(f"<th>{escape(name)}</th>" for name in names)
    body = "".join(f"<tr>{''.join(_cell(row.get(name)) for name in names)}</tr>" for row in shown)
    count = len(rows) if total is None else total
    more = f"<p>{count - len(shown):,} more rows of {count:,}</p>" if count > len(shown) else ""
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{more}"


def _cell(value: Any) -> str:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return f'<td align="right">{f"{value:,}" if isinstance(value, int) else f"{value:,.4g}"}</td>'
    return f"<td>{'' if value is None else escape(str(value))}</td>"
