"""Plan files and flags to settings: the file first, flags over it, `--set` over both."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from mla_cost.declared.forms import FORMS
from mla_cost.errors import InputError, shown
from mla_cost.inputs import given
from mla_cost.inputs.config import AttentionDims, validated
from mla_cost.inputs.marks import marked
from mla_cost.inputs.settings import PlanSettings
from mla_cost.inputs.table import LISTS, MAPPINGS, TABLE


def names(texts: Iterable[str] | None) -> list[str] | None:
    """Names from a repeated flag, each perhaps several separated by commas; None where the flag is absent."""
    if texts is None:
        return None
    return [name.strip() for text in texts for name in text.split(",")]


def assignments(texts: Iterable[str] | None, prefix: str = "") -> dict[str, Any]:
    """`field=value` texts as a mapping; values are numbers, true, false, null or text.

    Raises:
        InputError: a text without a field or without a value.

    """
    found: dict[str, Any] = {}
    for text in texts or ():
        field, equals, value = text.partition("=")
        if not equals or not field.strip() or not value.strip():
            raise InputError(f"expected FIELD=VALUE, read {shown(text)}", field=f"--{prefix or 'set'}")
        path = f"{prefix}.{field.strip()}" if prefix else field.strip()
        if path in found:
            raise InputError("is given twice and has one value", field=f"--{prefix or 'set'} {field.strip()}")
        found[path] = value.strip() if _of_kind(path, "tokens") else _scalar(value.strip())
    return found


def read_flag(name: str, value: Any) -> Any:
    """What a flag of a setting was given, as a plan file would state it."""
    if _of_kind(name, "names"):
        return names(value)
    mixed = isinstance(value, str) and _of_kind(name, "count")  # a number or a word
    return _scalar(value) if mixed else value


def _of_kind(name: str, kind: str) -> bool:
    return name in TABLE and TABLE[name].kind == kind


def _scalar(text: str) -> Any:
    if text in {"null", "true", "false"}:
        return {"null": None, "true": True, "false": False}[text]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def settings(
    file: Path | None,
    flags: Mapping[str, Any],
    assigned: Mapping[str, Any],
    reserve: Mapping[str, Any],
    base: Mapping[str, Any] | None = None,
    base_file: str | None = None,
) -> PlanSettings:
    """The settings of a plan file or ready plan (or the defaults) with flags and assignments over them.

    base, base_file: settings that were read elsewhere, in place of a plan file, and where.

    Raises:
        InputError: anything that is wrong, with the file and field it stands in.

    """
    if file is not None:
        from mla_cost.inputs.catalog import plan_path

        file = plan_path(file)
    with marked(None if file is None else str(file)):
        return _settings(file, flags, assigned, reserve, base, base_file)


def _settings(
    file: Path | None,
    flags: Mapping[str, Any],
    assigned: Mapping[str, Any],
    reserve: Mapping[str, Any],
    base: Mapping[str, Any] | None,
    base_file: str | None,
) -> PlanSettings:
    data = _read(file) if file is not None else dict(base or {})
    faults = _dims_faults(data, str(file)) if file is not None else ()
    data.update({name: value for name, value in flags.items() if value is not None})
    for path, value in {**assigned, **reserve}.items():
        _assign(data, path, value)
    for name in LISTS:
        if name in data:
            data[name] = _as_names(name, data[name])
    _require_units(data, str(file) if file is not None else base_file)
    try:
        found = validated(PlanSettings, data, file=str(file) if file is not None else base_file)
    except InputError as error:
        stated = [*(name for name, value in flags.items() if value is not None), *assigned, *reserve]
        first, *further = (*_blamed(error, stated).every(), *faults)
        raise first.beside(further) from None
    if faults:
        raise faults[0].beside(faults[1:])
    return found


_BARE: Final = 2**20  # bytes below which a bare number of them is more likely one of MiB or GiB


def _require_units(data: Mapping[str, Any], file: str | None) -> None:
    """Refuse a bare number of bytes that is too small to be meant as bytes.

    Raises:
        InputError: naming the field, and the ways to write it.

    """
    for field, value in data.items():
        if not _of_kind(field, "bytes"):
            continue
        bare = str(value).strip() if isinstance(value, int | float | str) and not isinstance(value, bool) else ""
        if bare.replace(".", "", 1).isdecimal() and 0 < float(bare) < _BARE:
            ways = f"{bare}GiB, {bare}MiB or {bare}B"
            raise InputError(f"{shown(value)} has no unit", file=file, field=field, allowed=ways)


def _blamed(error: InputError, stated: Iterable[str]) -> InputError:
    """The error without the plan file where the command line stated the field over it."""
    told = list(stated)
    first, *further = [_blamed_alone(each, told) for each in error.every()]
    return first.beside(further) if further else first


def _blamed_alone(error: InputError, stated: Iterable[str]) -> InputError:
    field = error.field or ""
    if not any(field == path or field.startswith((f"{path}.", f"{path}, ")) for path in stated):
        return error
    return InputError(error.message, field=error.field, value=error.value, allowed=error.allowed, nearest=error.nearest)


# launch scripts and the like, by their names; YAML and JSON of frameworks go by --from
FOREIGN: Final = (".sh", ".bash", ".slurm", ".sbatch", ".toml", ".args")


def _imported(name: str) -> dict[str, Any]:
    from mla_cost.inputs import importers

    return importers.read(name).settings


def plan_file(plan: str | os.PathLike[str]) -> dict[str, Any]:
    """The keywords that a plan file or ready plan stands for, to hand to `plan`, `levers`, `longest` or `sweep`.

    A launch script stands for what `mla_cost.inputs.importers.read` takes and assumes of it.

    >>> import mla_cost
    >>> moonlight = mla_cost.plan_file("moonlight-8-h100") | {"form": "explicit", "profile": "megatron"}
    >>> mla_cost.plan(**moonlight)["explicit"].verdict.status
    'oom'

    Raises:
        InputError: no such plan, or anything that is wrong in it.

    """
    name = given.name("plan", plan, "a ready plan's name, or the path of a file")
    foreign = _imported(name) if name.lower().endswith(FOREIGN) else None
    found = settings(None if foreign else Path(name), {}, {}, {}, foreign, name if foreign else None)
    return {name: getattr(found, name) for name in found.model_fields_set}


# what tells a file of another kind from a plan
_OTHERS = {
    "model": {"architectures", "model_type", "hidden_size", "kv_lora_rank", "num_layers"},
    "device": {"family", "arch", "framework_visible_bytes"},
}


def _read(file: Path) -> dict[str, Any]:
    from mla_cost.inputs.yaml_files import load_mapping

    if file.suffix.lower() in FOREIGN and file.is_file():
        raise InputError("a launch script is no plan file; give it as --from", file=str(file))
    data = load_mapping(file)
    described = next((kind for kind, keys in _OTHERS.items() if keys & data.keys() and "model" not in data), None)
    if described is not None:
        raise InputError(f"this file describes a {described}, not a plan; give it as --{described}", file=str(file))
    if "model" in data:
        data["model"] = _beside(file, data["model"])
    if isinstance(data.get("device"), str):
        data["device"] = _beside(file, data["device"])
    return data


def _dims_faults(data: Mapping[str, Any], file: str) -> tuple[InputError, ...]:
    """What is wrong in the dims that a file states: told here, where the file is known; over a model's own later."""
    stated = data.get("dims")
    if not isinstance(stated, dict):
        return ()
    try:
        validated(AttentionDims, dict.fromkeys(AttentionDims.model_fields, 2) | stated, file=file, prefix="dims")
    except InputError as error:
        return error.every()
    return ()


def _beside(file: Path, name: Any) -> Any:
    """A plan names the files that lie beside it."""
    from mla_cost.inputs.yaml_files import SUFFIXES

    if not isinstance(name, str) or not name.lower().endswith(SUFFIXES):
        return name
    path = file.parent / name
    return str(path) if os.path.exists(path) else name  # noqa: PTH110  (Path.exists raises where a name is too long)


def _assign(data: dict[str, Any], path: str, value: Any) -> None:
    head, dot, field = path.partition(".")
    if not dot:
        if head in AttentionDims.model_fields:
            raise InputError("unknown key", field=head, nearest=[f"dims.{head}"])
        data[head] = value
        return
    if head not in MAPPINGS:
        raise InputError(
            f"only {', '.join(MAPPINGS[:-1])} and {MAPPINGS[-1]} have fields of their own", field=f"--set {path}"
        )
    under = data.get(head) or {}
    if isinstance(under, dict):  # what else it is, the settings refuse
        data[head] = {**under, field: value}


def _as_names(name: str, value: Any) -> Any:
    listed = [value] if isinstance(value, str) else value
    if name == "form" and listed == ["all"]:
        return tuple(FORMS)
    return () if name == "device" and listed == ["none"] else listed
