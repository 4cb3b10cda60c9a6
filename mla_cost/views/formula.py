"""A formula as a table of terms, as LaTeX, or as JSON."""

from __future__ import annotations

import json
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from mla_cost.dims import SYMBOLS
from mla_cost.explain import QUANTITIES, Explanation, Term


def show(answer: Explanation) -> None:
    """Print the terms to a terminal or a pipe, 80 columns suffice."""
    console = Console()
    if not console.is_terminal:
        console.width = max(console.width, 80)
    console.print(heading(answer), highlight=False)
    for it in (answer, *answer.others):
        console.print()
        if it.moment:
            console.print(f"Moment: {it.moment}", highlight=False)
        console.print(_table(it), highlight=False)
    if answer.value() is not None:
        console.print(f"Total: {answer.value():,}", highlight=False)
    if answer.others:
        console.print("The largest of these moments is the peak; give --model, --sp, --seq-len to see which.")
    console.print()
    for line in legend(answer):
        console.print(line, highlight=False)


def heading(answer: Explanation) -> str:
    """What the formula is, and the key it holds for."""
    what = f"{answer.form} (scheme {answer.scheme}, kernel {answer.kernel}): {answer.quantity}"
    return f"{what}, {QUANTITIES[answer.quantity]}.\nHolds for: {answer.key}."


def _table(answer: Explanation) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 2, 0, 0))
    table.add_column("tensor")
    table.add_column("term")
    table.add_column("where")
    if answer.values is not None:
        table.add_column("value", justify="right", no_wrap=True)
    for term in answer.terms:
        table.add_row(term.tensor, term.text, term.where, *_value(answer, term))
    return table


def _value(answer: Explanation, term: Term) -> list[str]:
    return [] if answer.values is None else [f"{term.polynomial.at(answer.values):,}"]


def legend(answer: Explanation) -> list[str]:
    """What each symbol that appears means, and its value where there is one."""
    text = " ".join(term.text for it in (answer, *answer.others) for term in it.terms)
    used = [name for name in SYMBOLS if name in _symbols(text)]
    return [f"{name}: {SYMBOLS[name][0]}{_number(answer, name)}" for name in used]


def _symbols(text: str) -> set[str]:
    for sign in "*+-()":
        text = text.replace(sign, " ")
    return set(text.split())


def _number(answer: Explanation, name: str) -> str:
    values = answer.values
    if values is None:
        return ""
    if name == "S":
        return f" = {values['s'] * values['P']:,}"
    return f" = {values[name]:,}" if name in values else ""


def latex(answer: Explanation) -> str:
    """The sum as LaTeX, one line; of a peak the maximum over its moments."""
    import sympy

    return f"{sympy.latex(answer.expression(), order='none')}\n"


def as_json(answer: Explanation) -> str:
    """The terms as JSON."""
    return json.dumps({"schema": "mla-cost/explain/1", **_plain(answer)}, indent=2) + "\n"


def _plain(answer: Explanation) -> dict[str, Any]:
    return {
        "form": answer.form,
        "scheme": answer.scheme,
        "kernel": answer.kernel,
        "quantity": answer.quantity,
        "holds_for": answer.key,
        "moment": answer.moment or None,
        "terms": [_plain_term(answer, term) for term in answer.terms],
        "total": None if answer.values is None else sum(t.polynomial.at(answer.values) for t in answer.terms),
        "others": [_plain(other) for other in answer.others],
    }


def _plain_term(answer: Explanation, term: Term) -> dict[str, Any]:
    value = None if answer.values is None else term.polynomial.at(answer.values)
    return {"tensor": term.tensor, "where": term.where, "formula": term.text, "value": value}
