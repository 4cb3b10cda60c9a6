"""docs/tour.ipynb runs from the top, cell by cell, and what it shows is not an error. Its format is checked by hand."""

from __future__ import annotations

import ast
import json
from typing import Any

import pytest


@pytest.fixture(scope="module")
def shown(checkout) -> list[Any]:
    """What every code cell shows: the value of its last expression."""
    pytest.importorskip("matplotlib")
    found, names = [], {"__name__": "tour"}
    notebook = json.loads((checkout / "docs" / "tour.ipynb").read_text(encoding="utf-8"))
    assert notebook["nbformat"] == 4
    assert len({cell["id"] for cell in notebook["cells"]}) == len(notebook["cells"])
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            assert not cell["outputs"], "outputs go stale; save the notebook without them"
            *body, last = ast.parse("".join(cell["source"])).body
            assert isinstance(last, ast.Expr)
            exec(compile(ast.Module(body, []), "tour", "exec"), names)  # noqa: S102  # our own text
            found.append(eval(compile(ast.Expression(last.value), "tour", "eval"), names))  # noqa: S307  # as above
    return found


def test_the_tour_runs_and_shows_tables(shown):
    dims, plan, best, levers, points, fits, drawn, command = shown
    assert dims.heads == 16
    assert plan._repr_html_().count("<") > 20
    assert best[0] in {row.form for row in plan}
    assert len(levers) == 4
    assert points == 5 * 5 * 3
    assert [length for length, _, _ in fits] == sorted(length for length, _, _ in fits)
    assert drawn
    assert command.startswith("mla-cost plan --model deepseek-v2-lite")
