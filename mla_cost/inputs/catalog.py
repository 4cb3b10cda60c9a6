"""The catalogue: models and devices by the names people type, one YAML file each, read only when asked for.

A file's name is the canonical name (`deepseek-v3.yaml`), so a lookup parses that file and nothing else. Other names
(Hugging Face ids, product names) are found in `configs/aliases.yaml`, an index that is only read when the direct name
misses; `write_alias_index` makes it and a test compares it with the files.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

from mla_cost.errors import InputError, nearest, shown
from mla_cost.inputs.config import AttentionDims, DeviceConfig, ModelConfig, validated
from mla_cost.inputs.marks import marked
from mla_cost.inputs.yaml_files import SUFFIXES, load_mapping

Kind = Literal["models", "devices"]
Config = TypeVar("Config", ModelConfig, DeviceConfig)
_ALIASES: Final = "aliases.yaml"


def model(name_or_path: str | os.PathLike[str]) -> ModelConfig:
    """The model called `name_or_path`, or described by that file: a model YAML or a published `config.json`.

    Case, spaces, underscores and the owner of a Hugging Face id do not matter. The same object is returned on every
    call, for a file until the file changes. Raises InputError: an unknown name with the nearest ones, or what is
    wrong in the file.
    """
    return _find("models", name_or_path, _model_file)


def device(name_or_path: str | os.PathLike[str]) -> DeviceConfig:
    """The device called `name_or_path`, or described by that YAML file; otherwise as `model`."""
    return _find("devices", name_or_path, _device_file)


def changed(own: ModelConfig, dims: Mapping[str, Any], facts: Mapping[str, Any], mtp: int | None = None) -> ModelConfig:
    """A model with some dims and facts in place of its own; facts are keys of a model's file. mtp: its MTP modules.

    Raises:
        InputError: a key that no model has, a value that it may not have, or a key that says what a model is.

    """
    if mtp is not None:
        stated = facts.get("num_mtp_layers", mtp)
        if stated != mtp:
            raise InputError("contradicts mtp", field="facts.num_mtp_layers", value=stated, allowed=f"{mtp}, or no mtp")
        facts = {**facts, "num_mtp_layers": mtp}
    for field in ("dims", "name"):
        if field in facts:
            raise InputError("a plan states it apart", field=f"facts.{field}", allowed="dims.WIDTH, model")
    found = validated(ModelConfig, {**own.model_dump(), **facts}, prefix="facts") if facts else own
    if not dims:
        return found
    widths = validated(AttentionDims, {**found.dims.model_dump(), **dims}, prefix="dims")
    return found.model_copy(update={"dims": widths})


def entry(name_or_path: str | os.PathLike[str]) -> ModelConfig | DeviceConfig:
    """The model or the device called `name_or_path`, or described by that file: one with a `family` is a device."""
    asked = _asked(name_or_path, "model or device")
    if _is_path(asked):
        return device(asked) if "family" in load_mapping(asked) else model(asked)
    if _known("models", asked) is not None:
        return model(asked)
    if _known("devices", asked) is not None:
        return device(asked)
    raise _unknown(asked, ["models", "devices"])


def model_names() -> tuple[str, ...]:
    """The canonical name of every model of the catalogue, sorted."""
    return _names("models")


def device_names() -> tuple[str, ...]:
    """The canonical name of every device of the catalogue, sorted."""
    return _names("devices")


def plan_names() -> tuple[str, ...]:
    """The name of every ready plan, sorted."""
    return tuple(sorted(path.stem for path in (configs_directory() / "plans").glob("*.yaml")))


def plan_path(name_or_path: str | os.PathLike[str]) -> Path:
    """The file of the ready plan of that name; a path is itself.

    Raises:
        InputError: neither, with the nearest names.

    """
    asked = _asked(name_or_path, "plan")
    if _is_path(asked) or os.path.isfile(asked):  # noqa: PTH113  (Path.is_file raises where a name is too long)
        return Path(asked)
    key, names = normalised(asked), plan_names()
    if key in names:
        return configs_directory() / "plans" / f"{key}.yaml"
    allowed = "the names that `mla-cost plans` lists, or the path of a .yaml, .yml or .json file"
    raise InputError(
        f"unknown plan {shown(asked)}", allowed=allowed, nearest=_meant(key, dict(zip(names, names, strict=True)))
    )


@cache
def configs_directory() -> Path:
    """Where the YAML files are: beside this module in an installed wheel, at the top of a checkout otherwise."""
    package = Path(__file__).resolve().parents[1]
    for directory in (package / "configs", package.parent / "configs"):
        if (directory / _ALIASES).is_file():
            return directory
    raise RuntimeError(f"this installation of mla_cost has no configs directory beside {package}")


def normalised(name: str) -> str:
    """`name` in lower case with every run of other characters than letters, digits, '.' and '/' as one '-'."""
    return re.sub(r"[^a-z0-9./]+", "-", name.strip().lower()).strip("-")


def _find(kind: Kind, name_or_path: str | os.PathLike[str], read: Callable[[str, int], Config]) -> Config:
    asked = _asked(name_or_path, kind[:-1])
    if _is_path(asked):
        return read(asked, _version(asked))
    return read(str(configs_directory() / kind / f"{_canonical(kind, asked)}.yaml"), 0)


def _asked(name_or_path: str | os.PathLike[str], what: str) -> str:
    asked = os.fspath(name_or_path) if isinstance(name_or_path, os.PathLike) else name_or_path
    if not isinstance(asked, str):
        raise InputError(f"a {what} is asked for by its name or the path of its file", value=asked)
    return asked


def _is_path(asked: str) -> bool:
    if asked.lower().endswith(SUFFIXES):
        return True
    separators = [separator for separator in (os.sep, os.altsep) if separator]
    holds_one = any(separator in asked for separator in separators)
    return holds_one and os.path.exists(asked)  # noqa: PTH110  (Path.exists raises where a name is too long)


def _version(path: str) -> int:
    """Changes when the file does; 0 for a file that cannot be looked at, which reading it then reports."""
    try:
        return Path(path).stat().st_mtime_ns
    except (OSError, ValueError):
        return 0


def _canonical(kind: Kind, asked: str) -> str:
    known = _known(kind, asked)
    if known is None:
        raise _unknown(asked, [kind])
    return known


@cache
def _known(kind: Kind, asked: str) -> str | None:
    key = normalised(asked)
    return key if key in _names(kind) else _alias_index()[kind].get(key)


def _unknown(asked: str, kinds: list[Kind]) -> InputError:
    names = {name: name for kind in kinds for name in _names(kind)}
    names |= {alias: name for kind in kinds for alias, name in _alias_index()[kind].items()}
    lists = " and ".join(f"`mla-cost {kind}`" for kind in kinds)
    what = " or ".join(kind[:-1] for kind in kinds)
    allowed = f"the names that {lists} list{'s' if len(kinds) == 1 else ''}, or the path of a file"
    if normalised(asked) in plan_names():
        plan = normalised(asked)
        way_out = f"`mla-cost plan {plan}`, in Python mla_cost.plan(**mla_cost.plan_file({plan!r}))"
        return InputError(f"{shown(asked)} is a ready plan and no {what}", allowed=f"{allowed}; for the plan {way_out}")
    return InputError(f"unknown {what} {shown(asked)}", allowed=allowed, nearest=_meant(normalised(asked), names))


def _meant(key: str, index: dict[str, str]) -> list[str]:
    """Up to four canonical names that `key` may mean: those it begins, else those spelt like it or its last part."""
    begun = [name for name in index if key and name.startswith(key)]
    close = begun or nearest(key, index, count=6) or nearest(key.rpartition("/")[2], index, count=6)
    return list(dict.fromkeys(index[name] for name in close))[:4]


@cache
def _names(kind: Kind) -> tuple[str, ...]:
    return tuple(sorted(path.stem for path in (configs_directory() / kind).glob("*.yaml")))


@cache
def _alias_index() -> dict[str, dict[str, str]]:
    return load_mapping(configs_directory() / _ALIASES)


@cache
def _model_file(path: str, version: int) -> ModelConfig:
    with marked(path):
        return _read_model(path, version)


def _read_model(path: str, version: int) -> ModelConfig:
    if not path.lower().endswith(SUFFIXES):  # a launch script states its model
        from mla_cost.inputs.importers import model_of

        return validated(ModelConfig, model_of(path), file=path)
    data = load_mapping(path)
    if path.lower().endswith(".json") and "dims" not in data:
        from mla_cost.inputs.importers.huggingface import model_from_config  # only a foreign file needs it

        return model_from_config(data, file=path)
    data = _named(data, path)
    data.setdefault("num_mla_layers", data.get("num_layers"))
    if version and "num_mtp_layers" not in data:  # of the catalogue's own files None says that there are none
        data.setdefault("assumed", {"num_mtp_layers": "num_mtp_layers is not in the file; taken: no MTP module"})
    return validated(ModelConfig, data, file=path)


@cache
def _device_file(path: str, _version: int) -> DeviceConfig:
    with marked(path):
        return validated(DeviceConfig, _named(load_mapping(path), path), file=path)


def _named(data: dict[str, Any], path: str) -> dict[str, Any]:
    """A user's file need not name what it describes: its own name serves."""
    name = data.get("name", Path(path).stem)
    return {"name": name, "title": name, **data}


def alias_index() -> dict[str, dict[str, str]]:
    """Every name by which a catalogue entry is known beside its own -> its canonical name; reads every file.

    Raises ValueError when two entries claim one name.
    """
    entries: dict[Kind, list[ModelConfig] | list[DeviceConfig]] = {
        "models": [model(name) for name in model_names()],
        "devices": [device(name) for name in device_names()],
    }
    return {kind: _aliases_of(configs) for kind, configs in entries.items()}


def _aliases_of(configs: list[ModelConfig] | list[DeviceConfig]) -> dict[str, str]:
    index: dict[str, str] = {}
    for config in configs:
        hub = config.hf_id or "" if isinstance(config, ModelConfig) else ""
        names = (config.title, hub, hub.rpartition("/")[2], *config.aliases)
        for alias in sorted({normalised(name) for name in names if name} - {config.name}):
            if index.setdefault(alias, config.name) != config.name:
                raise ValueError(f"{alias} names both {index[alias]} and {config.name}")
    return dict(sorted(index.items()))


def write_alias_index() -> None:
    """Write `configs/aliases.yaml` of a checkout anew; run it after adding or renaming an entry."""
    lines = [
        "# Made by mla_cost.inputs.catalog.write_alias_index from the files beside it; a test fails when it is stale."
    ]
    for kind, index in alias_index().items():
        lines += [f"{kind}:", *(f"  '{alias}': {name}" for alias, name in index.items())]
    (configs_directory() / _ALIASES).write_text("\n".join(lines) + "\n", encoding="utf-8")
