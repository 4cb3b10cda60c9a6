"""The house as it shows itself: one class to a name, short functions, no figure rounded by hand, rules where the page
says that they stand.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from functools import cache
from pathlib import Path
from statistics import median

import mla_cost

ROOT = Path(mla_cost.__file__).parent
PAGES = ROOT.parent / "docs" / "decisions"
LONGEST = 40


@cache
def modules() -> dict[str, ast.Module]:
    return {
        path.relative_to(ROOT).as_posix(): ast.parse(path.read_text(encoding="utf-8"))
        for path in sorted(ROOT.rglob("*.py"))
    }


def test_no_name_serves_two_classes():
    names = Counter(
        node.name for tree in modules().values() for node in ast.walk(tree) if isinstance(node, ast.ClassDef)
    )
    assert [name for name, count in names.items() if count > 1] == []


def test_functions_are_short():
    lengths = {
        (where, node.name): (node.end_lineno or 0) - node.lineno + 1
        for where, tree in modules().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef)
    }
    assert {each: lines for each, lines in lengths.items() if lines > LONGEST} == {}
    assert median(lengths.values()) <= 10


def test_quotients_are_rounded_up_by_the_one_function():
    """`-(-a // b)` stands in docstrings and in the two checks that share no code with what they check."""
    own = {"checks/validation/fake.py", "checks/validation/device.py"}
    by_hand = [
        where
        for where, tree in modules().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.FloorDiv)
        if isinstance(node.left, ast.UnaryOp) and isinstance(node.left.op, ast.USub) and where not in own
    ]
    assert by_hand == []


def test_every_rule_stands_where_its_page_says():
    """Of each row of the table a file of the package, and in it every name that the row gives."""
    rows = re.findall(
        r"^\| (?!rule|---)([^|]+)\| ([^|]+)\|$", (PAGES / "0016-one-text-per-rule.md").read_text("utf-8"), re.MULTILINE
    )
    assert len(rows) > 15
    lost = []
    for rule, places in rows:
        at = ""
        for word in re.findall(r"`([^`]+)`", places):
            if word.endswith(".py"):
                at = word
                lost += [] if at in modules() else [(rule, at)]
            elif at in modules():
                names = word.split(".")
                lost += [(rule, word)] if not _defined(modules()[at], names) else []
    assert lost == []


def _defined(tree: ast.Module, names: list[str]) -> bool:
    """Whether a module, and then a class in it, defines these names one in the other."""
    body: list[ast.stmt] = tree.body
    for name in names:
        found = [node for node in body if name in _names(node)]
        if not found:
            return False
        body = getattr(found[0], "body", [])
    return True


def _names(node: ast.stmt) -> set[str]:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    named = {target.id for target in targets if isinstance(target, ast.Name)}
    return named | ({node.name} if isinstance(node, ast.FunctionDef | ast.ClassDef) else set())
