"""Rows as text: CSV, Markdown, JSON and a table for a terminal. A row maps column names to ints, texts or None."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from rich.console import Group, RenderableType
from rich.text import Text

from mla_cost.results import markdown
from mla_cost.results.csv_cells import harmless
from mla_cost.views import terminal
from mla_cost.views.grid import TextGrid
from mla_cost.views.parts import AT_WORST, assumed
from mla_cost.views.times import duration
from mla_cost.views.units import gib
from mla_cost.views.units import sent as sent_gib

Row = Mapping[str, Any]
STYLES: Final = {"fits": "green", "tight": "yellow", "oom": "red", "unsupported": "magenta", "illegal": "magenta"}
SPEAKING: Final = frozenset({"form", "scheme", "kernel", "device", "model"})  # their values tell what they are
# the first of the columns that a row has; sent by the stage that sends most, where there are stages
SHOWN: Final = (
    (("saved_bytes",), "saved", gib),
    (("allocated_peak_bytes",), "alloc.", gib),
    (("sent_bytes", "wire_bytes"), "sent", sent_gib),
    (("headroom_bytes",), "left", gib),
    (("least_headroom_bytes",), "worst", gib),
)


def _told(text: Callable[[float], str]) -> Callable[[float | None], str]:
    return lambda value: "" if value is None else text(value)


TIMES: Final = (
    (("seconds",), "step", _told(duration)),
    (("tokens_per_second",), "tokens/s", _told("{:,.0f}".format)),
    (("model_flops_utilisation",), "mfu", _told("{:.1%}".format)),
    (("idle_seconds",), "idle", _told(duration)),
)


def csv_text(columns: Sequence[str], rows: Iterable[Row]) -> str:
    """CSV with a heading; None is empty."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([_csv_cell(row[name]) for name in columns] for row in rows)
    return text.getvalue()


def _csv_cell(value: Any) -> Any:
    if value is None:
        return ""
    return harmless(value) if isinstance(value, str) else value


def markdown_text(columns: Sequence[str], rows: Iterable[Row]) -> str:
    """A table of GitHub's Markdown; numbers to the right, with thousands separated."""
    found = list(rows)
    right = [any(isinstance(row[name], int) for row in found) for name in columns]
    return markdown.table(columns, ([_cell(row[name]) for name in columns] for row in found), right) + "\n"


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value).replace("|", "\\|")


def show(
    settings: Sequence[str],
    rows: Sequence[Row],
    left_out: int,
    sent: str,
    taken: Mapping[str, str],
    *,
    notes: bool = True,
) -> None:
    """Print rows as a table: what varies, the names that vary, GiB, verdict. sent: what is sent by whom, in what time.

    taken: what a model's file leaves out. Numbers are wholly reported whatever the width: a narrow terminal gets a
    paragraph per row.
    """
    parts: list[RenderableType] = [*map(Text, assumed({"assumed": taken})), _table(settings, rows)]
    if notes:
        parts.append(Text(f"GiB on one rank (sent: {sent}; left: usable less required; {AT_WORST}).", style="dim"))
    parts += _reasons(rows)
    if left_out:
        parts.append(Text(f"{left_out:,} more rows: --output FILE.csv writes all of them.", style="dim"))
    terminal.show(Group(*parts))


def _table(settings: Sequence[str], rows: Sequence[Row]) -> TextGrid:
    names = [name.removeprefix("dims.") for name in settings]
    words = [name for name in settings if not any(isinstance(row[name], int) for row in rows)]
    left = [*(name.removeprefix("dims.") for name in words), "verdict"]
    told = [name for name in words if name not in SPEAKING]
    shown = [*SHOWN, *(each for each in TIMES if rows and each[0][0] in rows[0])]
    table = TextGrid((*names, *(name for _, name, _ in shown), "verdict"), left, told)
    for row in rows:
        cells = [_cell(row[name]) for name in settings] + [text(_first(row, own)) for own, _, text in shown]
        table.add(*cells, Text(row["status"], STYLES.get(row["status"], "")))
    return table


def _first(row: Row, names: Sequence[str]) -> Any:
    return next(row[name] for name in names if name in row)


def _reasons(rows: Sequence[Row]) -> Iterator[Text]:
    for reason in dict.fromkeys(row["reason"] for row in rows if row["reason"]):
        refused = next(row["status"] for row in rows if row["reason"] == reason)
        yield Text(f"{refused}: {reason}")
