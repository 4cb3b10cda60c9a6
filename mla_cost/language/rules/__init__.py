"""Every op of the program language and the rule that runs it. One file per op family holds all that is known of it.

A rule declares itself (`mla_cost.language.ops`), so a new op is a function in one of these files, or a new file. Those
that a block of attention needs are imported here, all others when the first of their ops is asked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from mla_cost.language.ops import OPS, Call, Runs, Tensors, readable, spelled
from mla_cost.language.program import DeclarationError
from mla_cost.language.rules import attention, einsum, elementwise, exchange, matmul, norm, rope, softmax, split


def rule(name: str, words: tuple[str, ...] = ()) -> Runs:
    """The rule of an op. Words are its operands where it takes any, and else the first selects one way to run it.

    Raises:
        DeclarationError: no op of that name, or none with that word, with the nearest ones.

    """
    full = spelled(name, words[0]) if words else name
    found = _found(name, full, OPS) or _found(name, full, _complete())
    if found is None:
        from mla_cost.errors import nearest

        raise DeclarationError(f"unknown op {full}", nearest=nearest(full, OPS) or nearest(name, OPS))
    return found


def _found(name: str, full: str, known: Mapping[str, Runs]) -> Runs | None:
    plain = known.get(name)
    return plain if plain is not None and getattr(plain, "worded", name == full) else known.get(full)


def _complete() -> dict[str, Runs]:
    """The table with the rules of every file."""
    here = Path(__file__).parent
    for path in sorted(here.rglob("[!_]*.py")):
        import_module(".".join((__name__, *path.relative_to(here).with_suffix("").parts)))
    return OPS


def __getattr__(name: str) -> dict[str, Runs]:
    """RULES is every op whoever asks first, and a block of attention, which reads no table, still imports its own."""
    if name == "RULES":
        return _complete()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


if TYPE_CHECKING:
    RULES: dict[str, Runs]

__all__ = [
    "RULES",
    "Call",
    "Runs",
    "Tensors",
    "attention",
    "einsum",
    "elementwise",
    "exchange",
    "matmul",
    "norm",
    "readable",
    "rope",
    "rule",
    "softmax",
    "split",
]
