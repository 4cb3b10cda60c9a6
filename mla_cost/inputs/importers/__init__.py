"""Foreign formats, one a file, found by themselves: launch scripts and configs of frameworks, as a plan.

Nothing of a file is run: shell is split into words, YAML, JSON and TOML are read as data, no other file is opened.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from mla_cost.declared import defaults
from mla_cost.errors import InputError, shown
from mla_cost.inputs.importers.imported import FileReading, Foreign, Format, Imported

_SHELL: Final = (".sh", ".bash", ".slurm", ".sbatch", ".txt", ".args", "")
SUFFIXES: Final = (*_SHELL[:-1], ".toml")
# formats that others hold inside are asked first
_ORDER: Final = ("verl", "slime", "mindspeed", "megatron", "huggingface")


@cache
def formats() -> tuple[Format, ...]:
    """Every format, the most particular first."""
    found = {module.FORMAT.name: module.FORMAT for module in _modules() if hasattr(module, "FORMAT")}
    first = [found.pop(name) for name in _ORDER if name in found]
    last = [first.pop()] if first and first[-1].name == _ORDER[-1] else []
    return (*first, *found.values(), *last)


def _modules() -> Iterator[Any]:
    for path in sorted(Path(__file__).parent.glob("[!_]*.py")):
        yield import_module(f"{__name__}.{path.stem}")


def read(
    path: str | os.PathLike[str], *, dp: int | None = None, model: str | None = None, strict: bool = False
) -> Imported:
    """The plan that a foreign file states. dp, model: in place of what follows from the file.

    Raises:
        InputError: no format that is known, what is wrong in it, and, where `strict`, what had to be assumed.

    """
    foreign = _foreign(os.fspath(path), dp)._replace(model=model)
    found = next((each for each in formats() if each.recognises(foreign)), None)
    if found is None:
        titles = ", ".join(each.title for each in formats())
        raise InputError("no format that is known here", file=foreign.file, allowed=titles)
    reading = FileReading(foreign)
    found.read(foreign, reading)
    imported = _imported(found, reading)
    if strict:
        _refuse_assumptions(imported)
    return imported


def model_of(path: str) -> dict[str, Any]:
    """The model that a foreign file states, as a model's file has it.

    Raises:
        InputError: as `read`, and a file that states no model.

    """
    from mla_cost.inputs.importers.models import as_file

    foreign = _foreign(path, None)
    found = next((each for each in formats() if each.recognises(foreign)), None)
    if found is None:
        raise InputError("no format that is known here", file=path)
    reading = FileReading(foreign)
    found.read(foreign, reading)
    if not reading.dims:
        raise InputError(f"this file ({found.title}) states no model", file=path, allowed="a model with --model")
    return as_file(reading)


def _imported(found: Format, reading: FileReading) -> Imported:
    from mla_cost.inputs.importers.models import settle

    own = settle(reading)
    if reading.stated_model is not None:
        reading.take("model", reading.stated_model, "stated beside the file")
    for name, usual in (("model", defaults.MODEL), ("seq_len", defaults.SEQ_LEN)):
        if name not in reading.settings:
            reading.assume(name, usual, f"{name} is not in the file (--{name.replace('_', '-')} states it)")
    lists = (tuple(reading.taken), tuple(reading.assumed), tuple(reading.ignored))
    return Imported(found.name, found.title, reading.file, reading.settings, own, *lists)


def _refuse_assumptions(imported: Imported) -> None:
    reported = [f"{each.setting} {each.value} ({each.why})" for each in imported.assumed]
    reported += [f"{each.said} ({each.why})" for each in imported.ignored if each.priced]
    if reported:
        more = f", and {len(reported) - 5} more" if len(reported) > 5 else ""
        raise InputError(
            f"--strict: the file does not decide {'; '.join(reported[:5])}{more}",
            file=imported.file,
            allowed="the flags in the file, or the import without --strict",
        )


def _foreign(path: str, dp: int | None) -> Foreign:
    from mla_cost.inputs.yaml_files import parse_json, parse_yaml, read_text

    file = str(Path(path) / "config.json") if os.path.isdir(path) else path  # noqa: PTH112  (a name may be too long)
    suffix = Path(file).suffix.lower()
    text = read_text(file)
    data: Mapping[str, Any] | None = None
    if suffix == ".json":
        data = parse_json(text, file)
    elif suffix in {".yaml", ".yml"}:
        data = parse_yaml(text, file)
    elif suffix == ".toml":
        data = _toml(text, file)
    elif suffix in _SHELL:
        from mla_cost.inputs.importers import shell

        return Foreign(file, text, None, shell.read(text, file), dp)
    else:
        allowed = f"names ending in {', '.join((*SUFFIXES, '.yaml', '.json'))}"
        raise InputError(f"a file ending in {shown(suffix)} is not read", file=file, allowed=allowed)
    return Foreign(file, text, data, None, dp)


def _toml(text: str, file: str) -> dict[str, Any]:
    import tomllib

    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise InputError(f"not valid TOML: {error}", file=file) from None
