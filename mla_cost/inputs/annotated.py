"""A plan of a whole model to start from: every setting with a comment, made from the table of settings."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from mla_cost.inputs import catalog
from mla_cost.inputs.plan_text import text_of
from mla_cost.inputs.settings import PlanSettings
from mla_cost.inputs.table import BLOCKS, GROUPS, TABLE, Setting

_EMPTY: Final[dict[str, str]] = {
    "dims": "dims: {heads: 64}",
    "facts": "facts: {num_mtp_layers: 0}",
    "published": "published: paper/table-2",
    "reserve": "reserve: {CUDA context: 600MiB}",
}


def annotated(model: str, device: str) -> str:
    """The YAML: what is a default is stated, what is nothing by default stands in a comment with an example.

    Raises:
        InputError: no such model or device.

    """
    catalog.model(model)
    catalog.device(device)
    settings = PlanSettings(model=model, device=(device,), scope="model").by_scope()
    schema = (catalog.configs_directory() / "schemas" / "plan.schema.json").as_uri()
    lines = [
        f"# yaml-language-server: $schema={schema}",
        "# A plan of mla-cost: a line that is left out has its default; `mla-cost plan FILE` prices it.",
    ]
    for group in GROUPS:
        rows = [row for row in TABLE.values() if row.group == group != BLOCKS and "model" in row.scopes]
        if rows:
            lines += ["", f"# -- {group}"]
        for row in rows:
            lines += _lines(row, getattr(settings, row.name))
    return "\n".join(lines) + "\n"


def _lines(row: Setting, value: Any) -> Iterator[str]:
    comment = f"{row.help}{_takes(row)}."
    if value is None or value in ({}, ()):
        yield f"# {_EMPTY.get(row.name) or f'{row.name}: {row.example or chr(39) * 2}'}  # {comment}"
        return
    listed = list(value) if isinstance(value, tuple) else value
    yield text_of({row.name: listed}, {row.name: comment}).rstrip("\n")


def _takes(row: Setting) -> str:
    """Unit, bounds or words, and the default."""
    if row.name == "remat":
        return ", joined by +; `mla-cost plan -h` lists them"
    if row.values:
        found = f": {', '.join(row.values)}"
    elif row.least is not None and row.most is not None:
        found = f": {row.least:,} to {row.most:,}{f' {row.unit}' if row.unit else ''}"
    else:
        found = f" ({row.unit})" if row.unit else ""
    return f"{found}; {row.unsaid}" if row.unsaid else found
