"""A plan, or a model, as the text of a YAML file: keys in the table's order, each with its comment."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from mla_cost.inputs.table import TABLE

_PLAIN: Final = re.compile(r"[A-Za-z_./][\w./+-]*")
_WORDS: Final = frozenset({"null", "true", "false", "nan", "inf", "infinity"})
_WIDTH: Final = 116


def plan_text(settings: Mapping[str, Any], comments: Mapping[str, str], head: Iterable[str] = ()) -> str:
    """The YAML of a plan. comments: by setting, or by `dims.hidden` and `facts.num_layers`; head: lines before it."""
    order = [name for name in TABLE if name in settings]
    return text_of({name: settings[name] for name in order}, comments, head)


def text_of(data: Mapping[str, Any], comments: Mapping[str, str], head: Iterable[str] = ()) -> str:
    """The YAML of a mapping that holds scalars, lists of them and mappings of both."""
    lines = [f"# {line}".rstrip() for each in head for line in _wrapped(each)]
    for name, value in data.items():
        if isinstance(value, Mapping) and value:
            lines.append(f"{name}:")
            lines += [f"  {_line(key, each, comments.get(f'{name}.{key}'))}" for key, each in value.items()]
        else:
            lines.append(_line(name, value, comments.get(name)))
    return "\n".join(lines) + "\n"


def _wrapped(text: str) -> list[str]:
    """A comment in lines of a page's width; further lines are indented."""
    import textwrap

    return textwrap.wrap(text, _WIDTH, subsequent_indent="    ", break_on_hyphens=False) or [""]


def _line(key: str, value: Any, comment: str | None) -> str:
    told = f"{key}: {_value(value)}"
    return told if comment is None else f"{told}  # {' '.join(comment.split())}"


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {_value(each)}" for key, each in value.items()) + "}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_value, value))}]"
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    if not isinstance(value, str):
        return str(int(value) if isinstance(value, int) else value)
    plain = _PLAIN.fullmatch(value) and value.lower().strip(".") not in _WORDS
    return value if plain else json.dumps(value)
