"""The keyword arguments of `mla_cost.plan` and its like as types, for editors and type checkers: made from settings.

`python -m mla_cost.checks.schema` writes them to mla_cost/inputs/keywords.py; a test fails when that is stale.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from mla_cost.inputs.table import SUBJECTS, TABLE, Setting

FILE: Final = Path(__file__).resolve().parents[1] / "inputs" / "keywords.py"
OWN_PARAMETERS: Final = frozenset({*SUBJECTS, "dims"})  # what `plan` names itself
_HEAD: Final = '''\
"""Keyword arguments of `mla_cost.plan`, `sweep`, `search` and others. Made by python -m mla_cost.checks.schema."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypedDict

'''
_SCOPE: Final = "scope"
_WIDEST: Final = 120


def text() -> str:
    """The module."""
    rows = [row for row in TABLE.values() if row.name not in OWN_PARAMETERS]
    scope = [line for row in rows if row.name == _SCOPE for line in _lines(row, _type(row))]
    others = [row for row in rows if row.name != _SCOPE]
    taken = [row for row in others if row.search != "follows"]
    alike = [row for row in taken if _searched(row) == _type(row)]
    shared, plain = ([line for row in some for line in _lines(row, _type(row))]
                     for some in (alike, (row for row in others if row not in alike)))  # fmt: skip
    searched = [line for row in taken if row not in alike for line in _lines(row, _searched(row))]
    return "\n".join([
        _HEAD.rstrip(), "", "",
        *_class("CommonKeywords", "TypedDict, total=False", "Settings that a plan and a search take alike.", shared),
        "", "",
        *_class("SettingKeywords", "CommonKeywords, total=False", "Every setting but the scope.", plain), "", "",
        *_class("PlanKeywords", "SettingKeywords, total=False", "Every setting.", scope), "", "",
        *_class("SearchKeywords", "CommonKeywords, total=False", "What a search takes, or goes over.",
                [*searched, *_OPTIONS]), "",
    ])  # fmt: skip


_OPTIONS: Final = (
    *(f"    max_{name}: int | None" for name in ("tp", "sp", "pp", "ep", "micro_batch")),
    "    max_idle: int",
    "    by: str | Sequence[str]",
    "    top: int",
)


def _class(name: str, bases: str, says: str, lines: list[str]) -> list[str]:
    return [f"class {name}({bases}):", f'    """{says}"""', "", *lines]


def _lines(row: Setting, kind: str) -> list[str]:
    """Of each of its names one."""
    found = [f"    {name}: {kind}" for name in (row.name, *row.also)]
    return [
        line if len(line) <= _WIDEST else line.replace("[", "[\n        ").replace("]", "\n    ]") for line in found
    ]


def _type(row: Setting) -> str:
    words = f"Literal[{', '.join(f'{value!r}' for value in row.values)}]".replace("'", '"') if row.values else ""
    kind = {
        "tokens": "int | str", "bytes": "int | str", "switch": "bool", "entries": "Mapping[str, int | str]",
        "mapping": "Mapping[str, Any]", "choice": words or "str",
        "count": " | ".join(filter(None, ("int", words))), "names": "str | Sequence[str]",
    }.get(row.kind, "str")  # fmt: skip
    return f"{kind} | None" if row.none else kind


def _searched(row: Setting) -> str:
    if row.search == "degree":
        return "int | str | Sequence[int] | None"
    return "str | Sequence[str] | None" if row.search == "choice" else _type(row)
