"""A formula as a table of terms."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.table import Table

from mla_cost.results import Formula, FormulaSymbol, FormulaTerm


def show(formula: Formula) -> None:
    """Print the terms to a terminal or a pipe, 80 columns suffice."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = max(console.width, 80)
    console.print(heading(formula))
    for it in (formula, *formula.others):
        console.print()
        if it.moment:
            console.print(f"Moment: {it.moment}")
        console.print(_table(it))
    if formula.total is not None:
        console.print(f"Total: {formula.total:,}")
    if formula.others:
        console.print("The largest of these moments is the peak; give --model, --sp, --seq-len to see which.")
    console.print()
    for symbol in formula.symbols:
        console.print(_symbol(symbol))


def heading(formula: Formula) -> str:
    """What the formula is, and the key it holds for."""
    what = f"{formula.form} (scheme {formula.scheme}, kernel {formula.kernel}): {formula.quantity}"
    return f"{what}, {formula.meaning}.\nHolds for: {formula.holds_for}."


def _table(formula: Formula) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 2, 0, 0))
    table.add_column("tensor")
    table.add_column("term")
    table.add_column("where")
    if formula.total is not None:
        table.add_column("value", justify="right", no_wrap=True)
    for term in formula.terms:
        table.add_row(term.tensor, term.formula, term.where, *_value(term))
    return table


def _value(term: FormulaTerm) -> list[str]:
    return [] if term.value is None else [f"{term.value:,}"]


def _symbol(symbol: FormulaSymbol) -> str:
    value = "" if symbol.value is None else f" = {symbol.value:,}"
    return f"{symbol.name}: {symbol.meaning}{value}"
