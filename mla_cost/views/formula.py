"""A formula as a table of terms."""

from __future__ import annotations

from collections.abc import Iterator

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from mla_cost.results import Formula, FormulaSymbol, FormulaTerm
from mla_cost.views import terminal
from mla_cost.views.times import duration


def show(formula: Formula) -> None:
    """Print the terms to a terminal or a pipe, 80 columns suffice."""
    terminal.show(Group(*_parts(formula)))


def _parts(formula: Formula) -> Iterator[RenderableType]:
    yield Text(heading(formula))
    for it in (formula, *formula.others):
        yield Text("")
        if it.moment:
            yield Text(f"Moment: {it.moment}")
        yield _table(it)
    if formula.total is not None:
        yield Text(f"Total: {formula.total:,}")
    if formula.total_seconds is not None:
        yield Text(f"Total: {duration(formula.total_seconds)}, one after another")
    if formula.others:
        yield Text("The largest of these moments is the peak; give --model, --sp, --seq-len to see which.")
    yield Text("")
    for symbol in formula.symbols:
        yield Text(_symbol(symbol))


def heading(formula: Formula) -> str:
    """What the formula is, and the key it holds for."""
    what = f"{formula.form} (scheme {formula.scheme}, kernel {formula.kernel}): {formula.quantity}"
    return f"{what}, {formula.meaning}.\nHolds for: {formula.holds_for}."


def _table(formula: Formula) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 2, 0, 0))
    table.add_column("tensor")
    table.add_column("term", overflow="fold")
    table.add_column("where")
    if formula.total is not None:
        table.add_column("value", justify="right", no_wrap=True)
    if formula.total_seconds is not None:
        table.add_column("time", justify="right", no_wrap=True)
        table.add_column("limit", no_wrap=True)
    for term in formula.terms:
        table.add_row(term.tensor, term.formula, term.where, *_value(term))
    return table


def _value(term: FormulaTerm) -> list[str]:
    if term.seconds is not None:
        return [duration(term.seconds), term.limit or ""]
    return [] if term.value is None else [f"{term.value:,}"]


def _symbol(symbol: FormulaSymbol) -> str:
    value = "" if symbol.value is None else f" = {symbol.value:,}"
    return f"{symbol.name}: {symbol.meaning}{value}"
