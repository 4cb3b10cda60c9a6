"""JSON Schemas of what people write: plan, model and device files, for editors with a YAML language server.

`python -m mla_cost.checks.schema` writes them to configs/schemas of a checkout; a test fails when they are stale. They
allow no more than the reader does where JSON Schema has words for it; `mla-cost check` says the rest.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel

from mla_cost.inputs.config import AttentionDims, DeviceConfig, ModelConfig
from mla_cost.inputs.settings import PlanSettings
from mla_cost.inputs.table import TABLE

_DRAFT: Final = "http://json-schema.org/draft-07/schema#"
_TOKENS: Final = {"type": "string", "pattern": r"^[0-9][0-9_]*[kKmM]?$|^[0-9]+[eE][0-9]+$"}
_AMOUNT: Final = {"anyOf": [{"type": "integer", "minimum": 0}, {"type": "string"}]}


def schemas() -> dict[str, dict[str, Any]]:
    """The schema of each kind of file by its name."""
    return {"plan": _plan(), "model": _file(ModelConfig, "A model."), "device": _file(DeviceConfig, "A device.")}


def write(directory: Path) -> None:
    """Write them all to a directory."""
    directory.mkdir(exist_ok=True)
    for name, schema in schemas().items():
        (directory / f"{name}.schema.json").write_text(json.dumps(schema, indent=2) + "\n", encoding="utf-8")


def _file(kind: type[BaseModel], description: str) -> dict[str, Any]:
    """As pydantic has it; a file's own name serves where it states none."""
    found = _plain(kind.model_json_schema(mode="validation"))
    found["required"] = [name for name in found.get("required", []) if name not in {"name", "title"}]
    return {"$schema": _DRAFT, **found, "title": description}


def _plan() -> dict[str, Any]:
    found = _plain(PlanSettings.model_json_schema(mode="validation"))
    for name, schema in found["properties"].items():
        row = TABLE[name]
        if row.kind == "tokens":
            found["properties"][name] = {"anyOf": [schema, _TOKENS]}
        elif row.kind == "bytes":
            found["properties"][name] = dict(_AMOUNT)
        elif row.kind == "entries":
            found["properties"][name] = {"type": "object", "additionalProperties": _AMOUNT}
        elif row.kind == "names":
            found["properties"][name] = {"anyOf": [schema, {"type": "string"}]}
        found["properties"][name] |= {"description": _said(name)}
    found["properties"]["dims"] |= {"properties": _plain(AttentionDims.model_json_schema())["properties"]}
    found["properties"]["dims"]["additionalProperties"] = False
    return {"$schema": _DRAFT, **found, "title": "A plan of mla-cost."}


def _said(name: str) -> str:
    row = TABLE[name]
    unit = f", in {row.unit}" if row.unit else ""
    default = f"; {row.unsaid}" if row.unsaid else ""
    return f"{row.help}{unit}{default}."


def _plain(schema: Any) -> Any:
    """Without titles, which repeat keys, and without the text of docstrings below the top."""
    if isinstance(schema, list):
        return [_plain(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: {name: _plain(each) for name, each in value.items()} if key in {"properties", "$defs"} else _plain(value)
        for key, value in schema.items()
        if key != "title" or not isinstance(value, str)
    }
