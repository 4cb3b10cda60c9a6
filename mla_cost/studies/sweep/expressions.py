"""A number that follows from others: `64/(tp*sp*pp)`, read by Python's own parser and nothing else of Python.

Whole numbers, names of fields, + - * / // % and parentheses. A quotient by / has to be whole where it is the answer.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction
from typing import Any, Final, NamedTuple

from mla_cost.errors import InputError, shown

_LONGEST: Final = 200  # characters
_MOST: Final = 64  # nodes
_LARGEST: Final = 2**63
ALLOWED: Final = "whole numbers, names of fields, + - * / // % and parentheses"
_OPERATORS: Final[Mapping[type[ast.operator], Callable[[Fraction, Fraction], Fraction]]] = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: lambda a, b: a * b,
    ast.Div: lambda a, b: a / b,
    ast.FloorDiv: lambda a, b: Fraction(a // b),
    ast.Mod: lambda a, b: a % b,
}


class Expression(NamedTuple):
    """A text that was read. names: the fields that it asks for, in order."""

    text: str
    names: tuple[str, ...]
    body: ast.expr

    def at(self, values: Mapping[str, int]) -> int | None:
        """The whole number for these values of fields; None where there is none, or a division by zero.

        Raises:
            InputError: a number on the way that no setting could hold.

        """
        try:
            found = self._of(self.body, values)
        except ZeroDivisionError:
            return None
        return int(found) if found.denominator == 1 else None

    def _of(self, node: ast.expr, values: Mapping[str, int]) -> Fraction:
        if isinstance(node, ast.BinOp):
            found = _OPERATORS[type(node.op)](self._of(node.left, values), self._of(node.right, values))
        elif isinstance(node, ast.UnaryOp):
            found = -self._of(node.operand, values)
        elif isinstance(node, ast.Constant):
            found = Fraction(_whole(node.value))
        else:
            found = Fraction(values[_name(node)])
        if abs(found.numerator) > _LARGEST or found.denominator > _LARGEST:
            raise InputError(f"{shown(self.text)} gets too large", field="over", allowed="numbers below 2^63")
        return found


def _whole(value: Any) -> int:
    return value if isinstance(value, int) else 0


def _name(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        return f"{node.value.id}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def expression(field: str, text: Any) -> Expression | None:
    """The expression that a text is; None where it is none, but values of an axis. field: that it is for.

    Raises:
        InputError: an expression of more than ALLOWED.

    """
    if not isinstance(text, str) or ".." in text or "," in text or len(text) > _LONGEST:
        return None
    try:
        body = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    nodes = list(ast.walk(body))
    if isinstance(body, ast.Constant | ast.Name | ast.Attribute) or not any(_name(node) for node in _leaves(nodes)):
        return None
    wrong = next((node for node in nodes if not _allowed(node)), None)
    if wrong is not None or len(nodes) > _MOST:
        raise InputError(f"{shown(text)} is no expression of fields", field=f"over {field}", allowed=ALLOWED)
    names = dict.fromkeys(name for node in _leaves(nodes) if (name := _name(node)))
    inside = {name.partition(".")[0] for name in names if "." in name}
    return Expression(text.strip(), tuple(name for name in names if name not in inside), body)


def _leaves(nodes: list[ast.AST]) -> Iterator[ast.expr]:
    yield from (node for node in nodes if isinstance(node, ast.expr))


def _allowed(node: ast.AST) -> bool:
    if isinstance(node, ast.BinOp):
        return type(node.op) in _OPERATORS
    if isinstance(node, ast.UnaryOp):
        return isinstance(node.op, ast.USub)
    if isinstance(node, ast.Constant):
        return type(node.value) is int and node.value < _LARGEST
    if isinstance(node, ast.Attribute):
        return bool(_name(node))
    return isinstance(node, ast.Name | ast.operator | ast.unaryop | ast.Load)
