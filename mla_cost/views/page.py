"""The page of a model: a calculator in one file, whose JavaScript is printed from the rules that price (Jinja2)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Protocol


class PageContents(Protocol):
    """What the page holds, as `mla_cost.studies.calculator` has it."""

    @property
    def title(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def scope(self) -> str: ...
    @property
    def boxes(self) -> Sequence[Any]: ...
    @property
    def selects(self) -> Mapping[str, Mapping[str, str]]: ...
    @property
    def forms(self) -> Sequence[str]: ...
    @property
    def start(self) -> Mapping[str, Any]: ...
    @property
    def columns(self) -> Mapping[str, str]: ...
    @property
    def axes(self) -> Sequence[str]: ...
    @property
    def not_held(self) -> Sequence[str]: ...
    @property
    def code(self) -> str: ...


def page(held: PageContents) -> str:
    """The page. It needs no network; what it keeps, it keeps in its address."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    pages = Environment(
        loader=PackageLoader("mla_cost.views", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    kept = {
        "boxes": [box._asdict() for box in held.boxes],
        "selects": {name: list(options) for name, options in held.selects.items()},
        "columns": dict(held.columns),
        "axes": list(held.axes),
        "forms": list(held.forms),
        "start": dict(held.start),
        "model": held.name,
    }
    # no text of a model or a device is in the code; in the data, no character may close the element that it stands in
    data = json.dumps(kept).replace("<", "\\u003c")
    return pages.get_template(f"page_{held.scope}.html").render(held=held, data=data)
