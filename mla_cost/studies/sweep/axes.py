"""What varies: texts, lists, ranges and globs to the values of each axis, checked before anything is priced."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, Final, NamedTuple

from mla_cost.declared.forms import FORMS
from mla_cost.declared.kernels import KERNELS
from mla_cost.declared.schemes import SCHEMES
from mla_cost.errors import InputError, nearest, shown
from mla_cost.inputs import catalog, schedules
from mla_cost.inputs.config import AttentionDims, ModelConfig, validated
from mla_cost.inputs.counts import counted
from mla_cost.inputs.given import items
from mla_cost.inputs.given import name as text_of
from mla_cost.inputs.plan_files import assignments
from mla_cost.inputs.settings import PlanSettings
from mla_cost.inputs.table import BOTH, TABLE, own_name
from mla_cost.pricing.automatic import AUTO
from mla_cost.pricing.resolve import named, refuse_tensor_parallel

MOST_VALUES: Final = 10_000_000
MOST_LISTED: Final = 1_000_000  # of a list or a generator, which hold each value
_VALUES: Final = "numbers, names, true, false or null; a list or range of them, or text such as 1..64*2"
# by scope, the fields of which whole numbers are gone over, as arrays
COUNTS: Final[Mapping[str, tuple[str, ...]]] = {
    scope: tuple(row.name for row in TABLE.values() if scope in row.numbers) for scope in BOTH
}
FIELDS: Final[Mapping[str, tuple[str, ...]]] = {
    scope: tuple(row.name for row in TABLE.values() if scope in row.swept) for scope in BOTH
}
DECLARED: Final[dict[str, Mapping[str, Any]]] = {"form": FORMS, "scheme": SCHEMES, "kernel": KERNELS}
_RANGE: Final = re.compile(r"(\d+[kKmM]?)\.\.(\d+[kKmM]?)(?:([*+])(\d+[kKmM]?))?")
_DIGITS: Final = 18
_GLOB: Final = re.compile(r"[*?\[]")


class SweepAxis(NamedTuple):
    """One field of a plan and the values that it takes, in order."""

    name: str
    values: Sequence[Any]


def axes_of(settings: PlanSettings, over: Mapping[str, Any]) -> list[SweepAxis]:
    """The axes of a sweep, in the order given.

    Raises:
        InputError: a field that a plan does not have, or a value that a plan would refuse.

    """
    axes = [SweepAxis(_field(name, settings.scope), values_of(name, given)) for name, given in over.items()]
    for axis in axes:
        _check(settings, axis)
    return axes


def is_glob(text: Any) -> bool:
    """Whether a name stands for all names that match it."""
    return isinstance(text, str) and (text == "all" or _GLOB.search(text) is not None)


def expand(name: str, patterns: Iterable[Any]) -> list[Any]:
    """The names that these names and globs stand for.

    Raises:
        InputError: a glob that nothing matches.

    """
    found = [match for pattern in patterns for match in (_matches(name, pattern) if is_glob(pattern) else [pattern])]
    return list(dict.fromkeys(found))


def _known(name: str) -> Iterable[str]:
    if name in DECLARED:
        return DECLARED[name]
    return catalog.model_names() if name == "model" else catalog.device_names()


def _matches(name: str, pattern: str) -> list[str]:
    known = list(_known(name))
    asked = "*" if pattern == "all" else catalog.normalised(pattern) if not _GLOB.search(pattern) else pattern.lower()
    found = [each for each in known if fnmatchcase(each, asked)]
    if not found:
        raise InputError(f"no {name} matches {shown(pattern)}", nearest=nearest(pattern.strip("*"), known))
    return found


def _field(name: Any, scope: str) -> str:
    name = own_name(name)
    if not isinstance(name, str):
        raise InputError("must be the name of a field", field="over", value=name, allowed=", ".join(FIELDS[scope]))
    fields = FIELDS[scope]
    head, dot, rest = name.partition(".")
    if dot and head == "dims" and rest in AttentionDims.model_fields:
        return name
    if dot and head == "reserve" and rest:
        return name
    if head == "facts" and scope == "model" and rest in ModelConfig.model_fields:
        return name
    if name in fields:
        return name
    if name in PlanSettings.model_fields:
        raise InputError(f"is no axis at {scope} scope", field=f"over {name}")
    known = [*fields, *(f"dims.{dim}" for dim in AttentionDims.model_fields)]
    close = [f"dims.{name}"] if name in AttentionDims.model_fields else nearest(name, known)
    allowed = f"{', '.join(fields)}, dims.*, reserve.*{', facts.*' if scope == 'model' else ''}"
    raise InputError(f"a plan has no field {shown(name)} to go over", field="over", allowed=allowed, nearest=close)


def values_of(name: str, given: Any) -> Sequence[Any]:
    """The values that a text, a list or a range stands for: `4096..131072*2`, `1..64+1`, `bf16,fp32`, names and globs.

    Raises:
        InputError: no values, or what is no range.

    """
    field = f"over {name}"
    parts = given.split(",") if isinstance(given, str) else given
    if not isinstance(parts, Iterable) or isinstance(parts, Mapping | bytes):
        parts = (parts,)
    if isinstance(parts, range):
        found: Sequence[Any] = _few(field, parts)
    else:
        taken = items(field, parts, most=MOST_LISTED, allowed=_VALUES)
        runs = [_one(name, _plain(field, part)) for part in taken]
        found = runs[0] if len(runs) == 1 else list(dict.fromkeys(value for run in runs for value in run))
    if not found:
        raise InputError("an axis needs at least one value", field=field)
    if name in {"model", "device", *DECLARED}:
        return expand(name, found)
    return found


def _few(field: str, given: range) -> range:
    """A range of no more values than an axis takes."""
    try:
        count = len(given)
    except OverflowError:
        count = 2**63
    if count > MOST_VALUES:
        raise InputError(f"{count:,} values", field=field, allowed=f"at most {MOST_VALUES:,} per axis")
    return given


def _plain(field: str, value: Any) -> Any:
    """A number of numpy as an int of Python; what is no single value is refused."""
    found = value
    if hasattr(value, "item") and not isinstance(value, str | type):
        try:
            found = value.item()
        except (TypeError, ValueError):
            raise InputError("is no single value", field=field, value=value, allowed=_VALUES) from None
    if found is not None and not isinstance(found, str | int | float | os.PathLike):
        raise InputError("is no single value", field=field, value=value, allowed=_VALUES)
    return text_of(field, found, _VALUES) if isinstance(found, os.PathLike) else found


def _one(name: str, part: Any) -> Sequence[Any]:
    if not isinstance(part, str):
        return (part,)
    text = part.strip()
    match = _RANGE.fullmatch(text)
    if match is not None:
        return _range(name, text, match)
    if not text:
        raise InputError("an empty value", field=f"over {name}")
    if name in {"model", "device", *DECLARED}:
        return (text,)
    read = assignments((f"{name}={text}",))[name]
    count = counted(text) if name in TABLE and TABLE[name].kind == "tokens" else None
    return (read if count is None else count,)


def _range(name: str, text: str, match: re.Match[str]) -> Sequence[int]:
    if max(len(part or "") for part in match.groups()) > _DIGITS:
        raise InputError(f"{shown(text)} is no range", field=f"over {name}", allowed=f"numbers of {_DIGITS} digits")
    first, last, step = (counted(part or "1") or 0 for part in (match[1], match[2], match[4]))
    if first > last or step == 0 or (match[3] == "*" and (step < 2 or first == 0)):
        raise InputError(
            f"{shown(text)} is no range", field=f"over {name}", allowed="a..b+STEP, or a..b*FACTOR with a FACTOR from 2"
        )
    if match[3] != "*":
        return _few(f"over {name}", range(first, last + 1, step))
    found = [first]
    while found[-1] * step <= last:
        found.append(found[-1] * step)
    return found


def _check(settings: PlanSettings, axis: SweepAxis) -> None:
    head, _, field = axis.name.partition(".")
    if head == "dims":
        _whole(axis, none=field == "q_lora_rank")
        dims = dict.fromkeys(AttentionDims.model_fields, 2)
        for value in axis.values:
            validated(AttentionDims, {**dims, field: value}, prefix="dims")
        return
    counts = COUNTS[settings.scope]
    if axis.name in counts:
        _whole(axis)
    for value in (min(axis.values), max(axis.values)) if axis.name in counts else axis.values:
        _check_value(settings, axis.name, value)


def _whole(axis: SweepAxis, none: bool = False) -> None:
    if isinstance(axis.values, range):
        return
    for value in axis.values:
        if type(value) is not int and not (none and value is None):
            raise InputError("must be a whole number", field=axis.name, value=value)


def _check_value(settings: PlanSettings, name: str, value: Any) -> None:
    if name in DECLARED:
        if value == AUTO and name == "kernel":
            return
        if value is not None or name != "scheme":  # None: the form's own
            named(name, value, DECLARED[name])
        return
    if name == "model":
        catalog.model(value)
        return
    if name == "schedule" and isinstance(value, str):
        schedules.find(value)
    if name == "device":
        if value not in {None, "none"}:
            catalog.device(value)
        return
    head, dot, field = name.partition(".")
    given = {head: {field: value}} if dot else {name: value}
    checked = validated(PlanSettings, given)
    if settings.scope == "attention":
        refuse_tensor_parallel(checked)
