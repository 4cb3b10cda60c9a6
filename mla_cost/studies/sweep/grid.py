"""The points of a sweep: choices (form, kernel, dtype, ...) x numbers (sequence, ranks, dims, ...) x devices.

Choices vary slowest, then numbers, then devices; within each the order given. Numbers are cut into boxes: a box holds
every value of the axes inside, a run of values of one axis, and one value of every axis outside.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from types import SimpleNamespace
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mla_cost.batch.matrices import Floats
from mla_cost.declared.forms import FORMS
from mla_cost.errors import InputError
from mla_cost.inputs import catalog
from mla_cost.inputs.config import AttentionDims, DeviceConfig, ModelConfig, validated
from mla_cost.inputs.settings import PlanSettings
from mla_cost.language.numbers import ceil_divide, is_array
from mla_cost.pricing.resolve import named, refuse_tensor_parallel, symbol_values, usual_sp
from mla_cost.studies.sweep.axes import COUNTS, SweepAxis

BOX: Final = 12288  # numeric points: what a box works on should stay in a core's own cache
LEAST: Final = 1024
DIMS: Final = "dims."  # before the width that an axis is
INDEXED: Final = "index_head_dim"  # the width that a model's indexer has


class Choice(NamedTuple):
    """One value of every axis that is not a number: settings, and where they stand on their axes."""

    number: int
    at: tuple[int, ...]
    form: str
    settings: PlanSettings


class Box(NamedTuple):
    """A run of numeric points: positions on the outer axes, and the run on the axis that is cut."""

    start: int
    outer: tuple[int, ...]
    first: int
    last: int
    size: int


class Grid:
    """Every point, unpriced."""

    def __init__(self, settings: PlanSettings, axes: Sequence[SweepAxis]) -> None:
        self._require(settings)
        self.settings = settings
        self.axes = tuple(axes)
        given = {axis.name: axis for axis in axes}
        self.devices = _devices(settings, given.pop("device", None))
        form = given.pop("form", None) or SweepAxis("form", settings.form)
        if not form.values:
            raise InputError("name at least one form", field="form", allowed=", ".join(FORMS))
        numbers = [axis for axis in given.values() if self.is_number(axis)]
        self.numbers: tuple[SweepAxis, ...] = tuple(numbers)
        rest = [axis for axis in given.values() if axis not in numbers]
        self.choices: tuple[SweepAxis, ...] = _in_order(axes, [*rest, form])
        for name in form.values:
            named("form", name, FORMS)
        models = next((axis.values for axis in given.values() if axis.name == "model"), (settings.model,))
        self.models: tuple[ModelConfig, ...] = tuple(_changed(name, settings) for name in models)
        self.shape = tuple(len(axis.values) for axis in self.numbers)
        self.num_numbers = math.prod(self.shape)
        self.num_choices = math.prod(len(axis.values) for axis in self.choices)
        self.own_sp = self._shares(axes)
        self._choices: dict[int, Choice] = {}
        self._spreads: dict[tuple[str, int], NDArray[Any]] = {}
        self._cut()

    @staticmethod
    def _require(settings: PlanSettings) -> None:
        refuse_tensor_parallel(settings)

    def _shares(self, axes: Sequence[SweepAxis]) -> bool:
        """Whether each point has the sp of its own heads and sequence; where all have the same, the settings get it."""
        if "sp" in self.settings.model_fields_set or any(axis.name == "sp" for axis in axes):
            return False
        (_, heads), (_, lengths) = self.along["dims.heads"], self.along["seq_len"]
        if len(heads) > 1 or len(lengths) > 1:
            return True
        sp = usual_sp(int(heads[0]), int(lengths[0]))
        self.settings = self.settings.model_copy(update={"sp": sp})
        del self.along  # worked out again with it
        return False

    @staticmethod
    def is_number(axis: SweepAxis) -> bool:
        """Whether an axis is a number that points of one box may differ in; names of models give such numbers."""
        return axis.name == "model" or axis.name in COUNTS["attention"] or axis.name.startswith(DIMS)

    def __len__(self) -> int:
        return self.num_choices * self.num_numbers * len(self.devices)

    def _cut(self) -> None:
        """Where to cut: as many whole inner axes as a box may hold, then a run of the next axis."""
        most = max(LEAST, BOX // max(1, len(self.devices) // 4))
        cut, inner = len(self.shape), 1
        while cut > 0 and inner * self.shape[cut - 1] <= most:
            cut -= 1
            inner *= self.shape[cut]
        self.cut = cut - 1  # -1: one box holds everything
        self.inner = inner
        self.run = max(1, most // inner)
        self.boxes_per_choice = (
            1 if cut == 0 else math.prod(self.shape[: cut - 1]) * ceil_divide(self.shape[cut - 1], self.run)
        )
        self.num_boxes = self.num_choices * self.boxes_per_choice

    def choice(self, number: int) -> Choice:
        """The choice of that number."""
        found = self._choices.get(number)
        if found is None:
            found = self._choices[number] = self._choice(number)
        return found

    def _choice(self, number: int) -> Choice:
        at = _unravel(number, [len(axis.values) for axis in self.choices])
        taken = {axis.name: axis.values[where] for axis, where in zip(self.choices, at, strict=True)}
        form = taken.pop("form")
        return Choice(number, at, form, _with(self.settings, taken))

    def box(self, number: int) -> Box:
        """The box of that number among those of one choice."""
        if self.cut < 0:
            return Box(0, (), 0, 0, self.num_numbers)
        runs = ceil_divide(self.shape[self.cut], self.run)
        before, run = divmod(number, runs)
        outer = _unravel(before, self.shape[: self.cut])
        first = run * self.run
        last = min(first + self.run, self.shape[self.cut])
        start = (before * self.shape[self.cut] + first) * self.inner
        return Box(start, outer, first, last, (last - first) * self.inner)

    def box_at(self, inside: int) -> int:
        """The number of the first box that begins at or after a numeric point."""
        if self.cut < 0:
            return int(inside > 0)
        before, rest = divmod(inside, self.shape[self.cut] * self.inner)
        runs = ceil_divide(self.shape[self.cut], self.run)
        return before * runs + ceil_divide(rest, self.run * self.inner)

    def one(self, inside: int) -> Box:
        """A box that holds one numeric point."""
        return Box(inside, _unravel(inside, self.shape), 0, 0, 1)

    def spread(self, key: str, values: NDArray[Any], axis: int, box: Box) -> Any:
        """The values of an axis at every point of a box: an array, or a scalar where the box holds one of them."""
        if len(values) == 1:
            return values[0]
        if axis < len(box.outer):
            return values[box.outer[axis]]
        if axis == self.cut:
            run = values[box.first : box.last]
            return run[0] if len(run) == 1 else np.repeat(run, self.inner)
        found = self._spreads.get((key, box.size))
        if found is None:
            block = np.repeat(values, math.prod(self.shape[axis + 1 :]))
            found = self._spreads[key, box.size] = np.tile(block, box.size // len(block))
        return found

    def index(self, choice: Choice, box: Box, at: int) -> int:
        """The number of a point of a box, on the first device."""
        return (choice.number * self.num_numbers + box.start + at) * len(self.devices)

    @cached_property
    def along(self) -> dict[str, tuple[int, Floats]]:
        """Of every number, `sp` or `dims.heads`, the axis that sets it (-1: none) and its values along that axis."""
        place = {axis.name: at for at, axis in enumerate(self.numbers)}
        found = {}
        for name in COUNTS["attention"]:
            at = place.get(name, -1)
            found[name] = (at, _floats(self.numbers[at].values if at >= 0 else [getattr(self.settings, name)]))
        for field in AttentionDims.model_fields:
            name = f"{DIMS}{field}"
            at = place.get(name, place.get("model", -1))
            values = self.numbers[at].values if name in place else [getattr(model.dims, field) for model in self.models]
            found[name] = (at, _floats(values))
        widths = [(model.indexer or {}).get(INDEXED, 0) for model in self.models]
        found[INDEXED] = (place.get("model", -1), _floats(widths))
        return found

    def values(self, box: Box) -> dict[str, Any]:
        """Every base symbol of a block over a box, in double precision; layers and sp_inside beside them."""
        spread = {name: self.spread(name, values, at, box) for name, (at, values) in self.along.items()}
        return self._symbols(spread)

    @cached_property
    def constant(self) -> frozenset[str]:
        """The base symbols that are the same at every point of the grid."""
        some = {name: values[:1] if len(values) > 1 else values[0] for name, (_, values) in self.along.items()}
        return frozenset(name for name, value in self._symbols(some).items() if not is_array(value))

    def _symbols(self, numbers: dict[str, Any]) -> dict[str, Any]:
        """As `values`. numbers: as in `along`, each one of a point or an array of them."""
        dims = {name.removeprefix(DIMS): value for name, value in numbers.items() if name.startswith(DIMS)}
        settings = SimpleNamespace(tp=1, **{name: numbers[name] for name in COUNTS["attention"]})
        if self.own_sp:
            settings.sp = usual_sp(dims["heads"], settings.seq_len) * 1.0
        beside = {"layers": settings.layers, "sp_inside": settings.sp_inside}
        model = SimpleNamespace(dims=SimpleNamespace(**dims), indexer={INDEXED: numbers[INDEXED]})
        return {**symbol_values(model, settings), **beside}

    def sp_of(self, taken: Mapping[str, Any], model: ModelConfig) -> int:
        """The sp of a point. taken: the value of each numeric axis; model: with the point's dims."""
        if not self.own_sp:
            return int(taken.get("sp", self.settings.sp))
        return int(usual_sp(model.dims.heads, int(taken.get("seq_len", self.settings.seq_len))))

    def positions(self, index: int) -> tuple[Choice, dict[str, Any], ModelConfig, DeviceConfig | None]:
        """What a point is: its choice, the value of each numeric axis, its model with its dims, its device."""
        number, device = divmod(index, len(self.devices))
        which, inside = divmod(number, self.num_numbers)
        at = _unravel(inside, self.shape)
        taken = {axis.name: axis.values[where] for axis, where in zip(self.numbers, at, strict=True)}
        where = next((at[n] for n, axis in enumerate(self.numbers) if axis.name == "model"), 0)
        model = self.models[where]
        dims = {name.removeprefix(DIMS): value for name, value in taken.items() if name.startswith(DIMS)}
        if dims:
            model = model.model_copy(update={"dims": model.dims.model_copy(update=dims)})
        return self.choice(which), taken, model, self.devices[device]

    def point_settings(self, index: int) -> tuple[str, ModelConfig, DeviceConfig | None, PlanSettings]:
        """A point as a plan would hold it."""
        choice, taken, model, device = self.positions(index)
        sizes = {name: int(value) for name, value in taken.items() if name in COUNTS[self.settings.scope]}
        if self.own_sp:
            sizes["sp"] = self.sp_of(taken, model)
        return choice.form, model, device, choice.settings.model_copy(update=sizes)

    def stated(self, index: int) -> PlanSettings:
        """A point as a command states it: with its form, device, model and dims."""
        form, _, device, settings = self.point_settings(index)
        _, taken, _, _ = self.positions(index)
        dims = {name.removeprefix(DIMS): value for name, value in taken.items() if name.startswith(DIMS)}
        named = {"form": (form,), "device": (device.name,) if device else (), "dims": {**settings.dims, **dims}}
        return settings.model_copy(update=named | ({"model": taken["model"]} if "model" in taken else {}))


class ModelGrid(Grid):
    """The points of the model scope: counts and degrees are numbers, models and their dims are choices."""

    @staticmethod
    def _require(settings: PlanSettings) -> None:
        if settings.layers > 1:
            raise InputError("the model scope has all layers", field="layers", value=settings.layers, allowed="1")
        if settings.idle_mlp:
            raise InputError("a model's own MLPs run", field="idle_mlp", value=settings.idle_mlp, allowed="0")

    @staticmethod
    def is_number(axis: SweepAxis) -> bool:
        """Whether an axis is a number that points of one box may differ in."""
        return axis.name in COUNTS["model"]

    def model(self, choice: Choice) -> ModelConfig:
        """The model of a choice, with its dims."""
        return _changed(choice.settings.model, choice.settings)

    def positions(self, index: int) -> tuple[Choice, dict[str, Any], ModelConfig, DeviceConfig | None]:
        """What a point is: its choice, the value of each numeric axis, its model with its dims, its device."""
        choice, taken, _, device = super().positions(index)
        return choice, taken, self.model(choice), device


def _devices(settings: PlanSettings, axis: SweepAxis | None) -> tuple[DeviceConfig | None, ...]:
    """Each device once, whatever names it was asked for by."""
    names: Sequence[Any] = (settings.device or (None,)) if axis is None else axis.values
    found = [None if name in {None, "none"} else catalog.device(name) for name in names]
    return tuple({device and device.name: device for device in found}.values())


def _in_order(axes: Sequence[SweepAxis], choices: Sequence[SweepAxis]) -> tuple[SweepAxis, ...]:
    """As the user gave them; what was not given comes first."""
    order = [axis.name for axis in axes]
    return tuple(sorted(choices, key=lambda axis: order.index(axis.name) if axis.name in order else -1))


def _changed(name: str, settings: PlanSettings) -> ModelConfig:
    return catalog.changed(catalog.model(name), settings.dims, settings.facts, settings.mtp)


def _with(settings: PlanSettings, taken: Mapping[str, Any]) -> PlanSettings:
    """The settings with the choices taken, checked as a plan's own; `reserve.item`, `dims.width`, `facts.key` too."""
    given: dict[str, Any] = {}
    for name, value in taken.items():
        head, dot, field = name.partition(".")
        given[head] = {**given.get(head, getattr(settings, head)), field: value} if dot else value
    checked = validated(PlanSettings, given) if given else settings
    return settings.model_copy(update={name: getattr(checked, name) for name in given})


def _unravel(number: int, shape: Sequence[int]) -> tuple[int, ...]:
    at = []
    for size in reversed(shape):
        number, where = divmod(number, size)
        at.append(where)
    return tuple(reversed(at))


def _floats(values: Sequence[Any]) -> Floats:
    if isinstance(values, range):
        return np.arange(values.start, values.stop, values.step, dtype=np.float64)
    return np.array([0 if value is None else value for value in values], dtype=np.float64)
