"""What is wrong in a file that a user wrote: a plan, a model, a device, a framework's config or a launch script."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from mla_cost.declared.forms import FORMS
from mla_cost.declared.kernels import KERNELS
from mla_cost.declared.schemes import SCHEMES
from mla_cost.errors import InputError, nearest
from mla_cost.inputs import catalog, plan_files
from mla_cost.inputs.marks import marked
from mla_cost.inputs.settings import PlanSettings
from mla_cost.inputs.yaml_files import SUFFIXES, load_mapping

_AUTO: Final = "auto"  # the kernel that is chosen by device


def faults(file: Path) -> tuple[InputError, ...]:
    """Every fault that is found in a file, none where all is well. What it is, its keys say."""
    try:
        with marked(str(file)):
            _read(file)
    except InputError as error:
        return tuple(each if each.file else _of(each, file) for each in error.every())
    return ()


def _read(file: Path) -> None:
    if file.suffix.lower() not in SUFFIXES or file.is_dir():
        from mla_cost.inputs import importers

        importers.read(file)
        return
    data = load_mapping(file)
    if "family" in data:
        catalog.device(str(file))
    elif "model" not in data and data.keys() & {"architectures", "model_type", "hidden_size", "num_layers", "dims"}:
        catalog.model(str(file))
    else:
        _check_plan(file)


def _check_plan(file: Path) -> None:
    """A plan, and the names that it holds."""
    settings = plan_files.settings(file, {}, {}, {})
    found = [*_unknown("model", (settings.model,), file), *_unknown("device", settings.device, file)]
    for field, known in (("form", FORMS), ("scheme", SCHEMES), ("kernel", {**KERNELS, _AUTO: None})):
        value = getattr(settings, field)
        names = value if isinstance(value, tuple) else (value,) if value is not None else ()
        for name in names:
            if name not in known:
                details: Any = {"allowed": ", ".join(known), "nearest": nearest(name, known)}
                found.append(InputError(f"unknown {field}", file=str(file), field=field, value=name, **details))
    if not found:
        _check_widths(settings, file)
    if found:
        raise found[0].beside(found[1:])


def _unknown(field: str, names: tuple[str, ...], file: Path) -> list[InputError]:
    """The names of models or devices that the catalogue has not, and what is wrong in files that are named."""
    found: list[InputError] = []
    for name in names:
        try:
            catalog.model(name) if field == "model" else catalog.device(name)
        except InputError as error:
            found += error.every() if error.file else [_of(error, file, field)]
    return found


def _check_widths(settings: PlanSettings, file: Path) -> None:
    """The dims and facts that a plan states over its model's own."""
    try:
        catalog.changed(catalog.model(settings.model), settings.dims, settings.facts, settings.mtp)
    except InputError as error:
        first, *further = [_of(each, file) for each in error.every()]
        raise first.beside(further) from None


def _of(error: InputError, file: Path, field: str | None = None) -> InputError:
    """A fault as one of this file."""
    told: dict[str, Any] = {name: getattr(error, name) for name in ("value", "allowed", "nearest", "line", "column")}
    return InputError(error.message, file=str(file), field=field or error.field, **told)
