"""`mla-cost import`: a launch script or a framework's config as a plan file."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from mla_cost.cli.flags import Given, command


@command
def import_(given: Given) -> None:
    """Read a launch script or a framework's config into a plan, with what it took, ignored and assumed."""
    from mla_cost.inputs import importers
    from mla_cost.inputs.importers.text import commented_plan

    found = importers.read(given["launch"], dp=given["dp"], model=given["model"], strict=given["strict"])
    if given["output"] == "json":
        sys.stdout.write(json.dumps(_as_dict(found), indent=2) + "\n")
    elif given["save"] is None:
        sys.stdout.write(commented_plan(found))
    else:
        _save(found, given["save"])


def _as_dict(found: Any) -> dict[str, Any]:
    lists = {name: [each._asdict() for each in getattr(found, name)] for name in ("taken", "assumed", "ignored")}
    return {
        "schema": "mla-cost/import/1", "file": found.file, "format": found.format, "settings": found.settings,
        "model": found.own_model, **lists,
    }  # fmt: skip


def _save(found: Any, path: Path) -> None:
    """The plan, and beside it the model where the catalogue has none like it."""
    from mla_cost.errors import InputError
    from mla_cost.inputs.importers.text import commented_plan, model_text

    if path.suffix.lower() not in {".yaml", ".yml"}:
        raise InputError("a plan file is YAML", field="--output", value=str(path), allowed="a name ending in .yaml")
    texts = {path: commented_plan(found)}
    if found.own_model is not None:
        beside = path.with_name(f"{path.stem}.model.yaml")
        texts = {beside: model_text(found), path: commented_plan(found, beside.name)}
    for file, text in texts.items():
        write(file, text)
    sys.stderr.write(f"wrote {' and '.join(map(str, texts))}\n")


def write(path: Path, text: str) -> None:
    """A file that holds all of the text, or that is as it was.

    Raises:
        InputError: where it cannot be written.

    """
    from mla_cost.errors import InputError

    part = path.with_name(f".{path.name}.part")
    try:
        part.write_text(text, encoding="utf-8")
        part.replace(path)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise InputError(f"cannot be written ({error.strerror})", file=str(path)) from None
