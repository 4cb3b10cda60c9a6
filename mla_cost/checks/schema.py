"""The JSON Schema of `mla-cost plan --format json`, which pydantic makes from the typed results.

`python -m mla_cost.checks.schema` writes it to docs/plan.schema.json of a checkout; a test fails when that is stale.
Readers should allow keys that the schema does not name: later versions add, and take nothing away.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel, TypeAdapter
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue

from mla_cost.checks import file_schemas, keywords
from mla_cost.inputs.catalog import configs_directory
from mla_cost.inputs.config import AttentionDims
from mla_cost.inputs.settings import PlanSettings
from mla_cost.results import SCHEMA, Result

_TEXT: Final = {"type": "string"}
_COUNT: Final = {"type": ["integer", "null"]}


class _AsPrinted(GenerateJsonSchema):
    """Records as objects of which every key is there: an answer states every value, so nothing has a default."""

    def named_tuple_schema(self, schema: Any) -> JsonSchemaValue:
        """A NamedTuple, which pydantic would print as an array."""
        return self._record(schema["cls"], schema["fields"])

    def call_schema(self, schema: Any) -> JsonSchemaValue:
        """The same before pydantic 2.14, to which a NamedTuple is a call with its fields."""
        return self._record(schema["function"], schema["arguments_schema"]["arguments_schema"])

    def _record(self, record: type, fields: Iterable[Any]) -> JsonSchemaValue:
        properties = {field["name"]: self.generate_inner(field["schema"]) for field in fields}
        return {"description": inspect.cleandoc(record.__doc__ or ""), **_object(properties)}

    def default_schema(self, schema: Any) -> JsonSchemaValue:
        """Of the value alone."""
        return self.generate_inner(schema["schema"])

    def field_title_should_be_set(self, schema: Any) -> bool:
        """A title would repeat the key."""
        del schema
        return False


def schema() -> dict[str, Any]:
    """The schema as plain dicts, of JSON Schema draft 2020-12."""
    result = TypeAdapter(Result).json_schema(schema_generator=_AsPrinted, mode="serialization")
    definitions = result.pop("$defs")
    results = {"type": "array", "minItems": 1, "items": {"$ref": "#/$defs/Result"}}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": SCHEMA,
        "description": "What `mla-cost plan --format json` prints. Bytes are exact integers, all figures for one rank.",
        **_object({"schema": {"const": SCHEMA}, "inputs": _inputs(), "results": results}),
        "$defs": dict(sorted({**definitions, "Result": result}.items())),
    }


def text() -> str:
    """The schema as the file holds it."""
    return json.dumps(schema(), indent=2) + "\n"


def _object(properties: Mapping[str, Any]) -> dict[str, Any]:
    """An object of which every key that is named is there."""
    return {"type": "object", "properties": dict(properties), "required": list(properties)}


def _inputs() -> dict[str, Any]:
    """Every setting as it was resolved, and what the model and the devices are."""
    facts = {"type": "object", "additionalProperties": _object({"title": _TEXT, "softmax_workspace": _TEXT})}
    return _object(
        _fields(PlanSettings)
        | {"dims": _object(_fields(AttentionDims))}
        | {"model_title": _TEXT, "num_layers": _COUNT, "num_mla_layers": _COUNT, "devices": facts}
        | {"assumed": {"type": "object", "description": "By fact, what stands for what the model's file leaves out."}}
        | {"sp_default": {"type": "string", "description": "What sp follows from, where it was not said; else empty."}}
        | {"changed": {"type": "object", "description": "Settings that are not the default's, as --set names them."}}
    )


def _fields(model: type[BaseModel]) -> dict[str, Any]:
    found: dict[str, Any] = model.model_json_schema(schema_generator=_AsPrinted, mode="serialization")["properties"]
    return found


if __name__ == "__main__":
    file_schemas.write(configs_directory() / "schemas")
    keywords.FILE.write_text(keywords.text(), encoding="utf-8")
    (Path(__file__).resolve().parents[2] / "docs" / "plan.schema.json").write_text(text(), encoding="utf-8")
