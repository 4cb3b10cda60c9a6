"""The JSON Schema of `mla-cost plan --format json`, made from the typed results.

`python -m mla_cost.checks.schema` writes it to docs/plan.schema.json of a checkout; a test fails when that is stale.
Readers should allow keys that the schema does not name: later versions add, and take nothing away.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Final, Literal, Union, get_args, get_origin, get_type_hints

from mla_cost.inputs.config import AttentionDims
from mla_cost.inputs.settings import PlanSettings
from mla_cost.results import SCHEMA, Result

_SIMPLE: Final = {int: "integer", str: "string", bool: "boolean", NoneType: "null"}
_TEXT: Final = {"type": "string"}
_COUNT: Final = {"type": ["integer", "null"]}


def schema() -> dict[str, Any]:
    """The schema as plain dicts, of JSON Schema draft 2020-12."""
    definitions: dict[str, Any] = {}
    results = {"type": "array", "minItems": 1, "items": _of(Result, definitions)}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": SCHEMA,
        "description": "What `mla-cost plan --format json` prints. Bytes are exact integers, all figures for one rank.",
        **_object({"schema": {"const": SCHEMA}, "inputs": _inputs(), "results": results}),
        "$defs": dict(sorted(definitions.items())),
    }


def text() -> str:
    """The schema as the file holds it."""
    return json.dumps(schema(), indent=2) + "\n"


def _object(properties: Mapping[str, Any]) -> dict[str, Any]:
    """An object of which every key that is named is there."""
    return {"type": "object", "properties": dict(properties), "required": list(properties)}


def _of(kind: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    """The schema of a type; records go to `definitions` by name and are referred to."""
    if kind in _SIMPLE:
        return {"type": _SIMPLE[kind]}
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Literal:
        return {"enum": list(arguments)}
    if origin in {Union, UnionType}:
        return {"anyOf": [_of(argument, definitions) for argument in arguments]}
    if origin is tuple:
        return {"type": "array", "items": _of(arguments[0], definitions)}
    if origin is Mapping:
        return {"type": "object"}
    return _record(kind, definitions)


def _record(kind: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    name = kind.__name__
    if name not in definitions:
        definitions[name] = {}  # before its fields, which may refer to it
        fields = {field: _of(hint, definitions) for field, hint in get_type_hints(kind).items()}
        definitions[name] = {"description": inspect.cleandoc(kind.__doc__), **_object(fields)}
    return {"$ref": f"#/$defs/{name}"}


def _inputs() -> dict[str, Any]:
    """Every setting as it was resolved, and what the model and the devices are."""
    settings = PlanSettings.model_json_schema(mode="serialization")["properties"]
    dims = AttentionDims.model_json_schema(mode="serialization")["properties"]
    facts = {"type": "object", "additionalProperties": _object({"title": _TEXT, "softmax_workspace": _TEXT})}
    return _object(
        _untitled(settings)
        | {"dims": _object(_untitled(dims))}
        | {"model_title": _TEXT, "num_layers": _COUNT, "num_mla_layers": _COUNT, "devices": facts}
        | {"assumed": {"type": "object", "description": "By fact, what stands for what the model's file leaves out."}}
        | {"sp_default": {"type": "string", "description": "What sp follows from, where it was not said; else empty."}}
        | {"changed": {"type": "object", "description": "Settings that are not the default's, as --set names them."}}
    )


def _untitled(properties: Mapping[str, Any]) -> dict[str, Any]:
    """Without the titles and defaults that pydantic writes: an answer states every value."""
    return {
        name: {key: value for key, value in property_.items() if key not in {"title", "default"}}
        for name, property_ in properties.items()
    }


if __name__ == "__main__":
    (Path(__file__).resolve().parents[2] / "docs" / "plan.schema.json").write_text(text(), encoding="utf-8")
