"""What a search is asked beside a plan: devices, global batch, which values each axis may take, limits, order."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, NamedTuple, get_args

from pydantic import BaseModel, ConfigDict, Field

from mla_cost.declared import defaults
from mla_cost.declared.forms import FORMS
from mla_cost.declared.profiles import PROFILES
from mla_cost.declared.schemes import SCHEMES
from mla_cost.declared.shardings import SHARDINGS
from mla_cost.errors import InputError
from mla_cost.inputs import table
from mla_cost.inputs.config import DeviceConfig, ModelConfig, validated
from mla_cost.inputs.given import names as names_of
from mla_cost.inputs.settings import PlanSettings
from mla_cost.inputs.table import TABLE
from mla_cost.language.recompute import POLICIES
from mla_cost.pricing.resolve import named
from mla_cost.studies.sweep.axes import values_of

By = Literal["devices", "time", "weight", "required", "sent", "flops", "idle"]
Devices = Annotated[int, Field(ge=1, le=2**16)]  # so that no degree is more than a plan takes
Limit = Annotated[int, Field(ge=1, le=2**16)] | None
DEGREES: Final = table.names(search="degree")
CHOICES: Final = table.names(search="choice")
CHOSEN: Final = table.names(search="follows")  # what follows from the rest


class Options(BaseModel):
    """Counts are whole numbers. max_tp None: the devices of one node, by the device's file; other limits None: none.

    devices: each count that may be used. global_batch: sequences in an optimizer step. max_idle: per cent of its
    pipeline's schedule that a stage may wait. by: what is smallest first; the rest of DEFAULT_ORDER breaks ties. top:
    how many layouts are reported.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    devices: Annotated[tuple[Devices, ...], Field(max_length=1024)]
    global_batch: Annotated[int, Field(ge=1, le=2**20)]
    max_tp: Limit = None
    max_sp: Limit = None
    max_pp: Limit = None
    max_ep: Limit = None
    max_micro_batch: Limit = 4
    max_idle: Annotated[int, Field(ge=0, le=100)] = defaults.MAX_IDLE
    by: tuple[By, ...] = ()
    top: Annotated[int, Field(ge=1, le=1000)] = 10

    def limits(self, device: DeviceConfig) -> dict[str, int]:
        """The largest degree of each axis that has a limit."""
        found = {axis: getattr(self, f"max_{axis}") for axis in ("tp", "sp", "pp", "ep")}
        found["tp"] = found["tp"] or device.devices_per_node.integer
        return {axis: limit for axis, limit in found.items() if limit is not None}

    @property
    def order(self) -> tuple[By, ...]:
        """What ranks, first things first."""
        return tuple(dict.fromkeys((*self.by, *DEFAULT_ORDER)))


# of a device whose time is not told all candidates take as long, and the weight ranks
DEFAULT_ORDER: Final[tuple[By, ...]] = ("devices", "time", "weight", "required", "sent", "flops", "idle")
_NAMES: Final = get_args(By)


class SearchQuestion(NamedTuple):
    """One search. settings: the plan whose degrees and choices are searched; axes: the values that a user allows.

    unsaid: by option, what a user has not stated and what was taken instead.
    """

    model: ModelConfig
    device: DeviceConfig
    settings: PlanSettings
    options: Options
    axes: Mapping[str, tuple[Any, ...]]
    unsaid: Mapping[str, str] = {}

    def values(self, axis: str) -> tuple[Any, ...]:
        """The values of `sharding` or `remat`: those allowed, else all that there are."""
        if axis in self.axes:
            return self.axes[axis]
        if axis == "remat":
            return (*POLICIES, *PROFILES[self.settings.profile].recomputes)
        if axis == "sharding":
            return tuple(SHARDINGS)
        return TABLE[axis].values


def options(settings: PlanSettings, given: Mapping[str, Any]) -> Options:
    """The options of a search. Without devices or a global batch they are those of the plan.

    Raises:
        InputError: an option that does not exist, or a value out of range.

    """
    asked = {name: value for name, value in given.items() if value is not None}
    if "by" in asked and not isinstance(asked["by"], str):
        asked["by"] = names_of("by", asked["by"], ", ".join(_NAMES))
    asked["devices"] = _counts("devices", asked.get("devices", settings.tp * settings.sp * settings.pp * settings.dp))
    asked.setdefault("global_batch", settings.micro_batch * settings.micro_batches * settings.dp)
    asked["by"] = _order(asked.get("by", ()))
    return validated(Options, asked)


def unsaid(given: Mapping[str, Any], own: Options) -> dict[str, str]:
    """By option, what nobody stated of the size of a search, and what of the plan was taken instead."""
    taken = {
        "devices": (f"{own.devices[0]:,}", "tp x sp x pp x dp of the plan"),
        "global_batch": (f"{own.global_batch:,}", "micro_batch x micro_batches x dp of the plan"),
    }
    return {
        name: f"{name} is not stated; taken: {number}, {why} (--{name.replace('_', '-')} asks for another)"
        for name, (number, why) in taken.items()
        if given.get(name) is None
    }


def _order(given: Any) -> Any:
    """What ranks, as names; what is no list of names is left for the options to refuse."""
    found = tuple(name.strip() for name in given.split(",")) if isinstance(given, str) else given
    for name in found if isinstance(found, list | tuple) else ():
        if isinstance(name, str):
            named("by", name, dict.fromkeys(_NAMES))
    return found


def axes(settings: PlanSettings, given: Mapping[str, Any]) -> dict[str, tuple[Any, ...]]:
    """The values that a user allows: of degrees as `1,2,4`, `1..8*2` or a list, of choices as names.

    Raises:
        InputError: an axis that a search does not have, or a value that a plan refuses.

    """
    found = {name: _counts(name, value) if name in DEGREES else _values(name, value) for name, value in given.items()}
    for name, values in found.items():
        for value in values:
            _check(name, value)
    if settings.scheme is not None:
        found.setdefault("scheme", (settings.scheme,))
    return found


def _counts(name: str, given: Any) -> tuple[int, ...]:
    values = _values(name, given)
    for value in values:
        if type(value) is not int:
            raise InputError("must be a whole number", field=name, value=value)
    return tuple(sorted(values))


def _values(name: str, given: Any) -> tuple[Any, ...]:
    """The values of an axis, with its own name where they are refused."""
    try:
        return tuple(dict.fromkeys(values_of(name, given)))
    except InputError as error:
        raise InputError(error.message, field=name, allowed=error.allowed, nearest=error.nearest) from None


def _check(name: str, value: Any) -> None:
    if name not in {*DEGREES, *CHOICES}:
        raise InputError("is no axis of a search", field=name, allowed=", ".join((*DEGREES, *CHOICES)))
    if name == "scheme":
        named("scheme", value, SCHEMES)
    validated(PlanSettings, {name: value})


def require_forms(settings: PlanSettings) -> None:
    """Refuse a plan without a form, or with one that does not exist.

    Raises:
        InputError: naming the forms.

    """
    if not settings.form:
        raise InputError("name at least one form", field="form", allowed=", ".join(FORMS))
    for form in settings.form:
        named("form", form, FORMS)
