"""A box of points priced at once: rows grouped by structural key, each group one matrix product over its monomials."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mla_cost.batch.blocks import FIGURES, Block, BlockAsked, block
from mla_cost.batch.codes import MISSING, NO_PROGRAM, REQUIREMENT, TOO_LARGE
from mla_cost.batch.matrices import SCRATCH, Ints
from mla_cost.batch.points import alike, groups, size_marks
from mla_cost.batch.programs import Kinds, Programs
from mla_cost.batch.symbols import structural, structural_marks
from mla_cost.declared import defaults
from mla_cost.declared.kernels import KERNELS
from mla_cost.inputs.config import DeviceConfig
from mla_cost.language.dims import STRUCTURAL, follow_where_known
from mla_cost.language.evaluate import EXACT_LIMIT
from mla_cost.language.program import Form, Kernel, Pair, ProgramError, Scheme, sizes_asked
from mla_cost.language.workspace import kinds_of
from mla_cost.pricing.automatic import trained
from mla_cost.pricing.key import Key, form_of
from mla_cost.pricing.resolve import Illegal, inner_values, pads_value, resolve, scheme_of
from mla_cost.pricing.usable import Usable, usable
from mla_cost.pricing.whole_model import groups_of_block
from mla_cost.studies.sweep.grid import Box, Choice, Grid


class BoxFigures(NamedTuple):
    """What a box costs, before devices: int64 arrays, MISSING where illegal."""

    columns: dict[str, Ints]
    peak: Ints
    allocated: dict[Kinds, Ints]
    reason: NDArray[np.int8]
    trained: dict[str, NDArray[np.bool_]]  # by architecture; none where every kernel trains

    @property
    def _every(self) -> tuple[Ints, ...]:
        return *self.columns.values(), self.peak, *self.allocated.values()

    def put(self, exact: Block, into: Any) -> None:
        """The figures of some points, by place; a point with one beyond the exact-integer limit is refused."""
        found = (*exact.figures, exact.peak, *exact.allocated)
        beyond = [np.flatnonzero(amounts >= EXACT_LIMIT) for amounts in found if amounts.max() >= EXACT_LIMIT]
        where = np.unique(np.concatenate(beyond)) if beyond else None
        for column, amounts in zip(self._every, found, strict=True):
            if where is not None:
                amounts[where] = MISSING
            column[into] = amounts
        if where is not None:
            self.reason[where if isinstance(into, slice) else into[where]] = TOO_LARGE

    def refuse(self, into: Any, reason: int) -> None:
        """No figures for some points, by place."""
        self.reason[into] = reason
        for column in self._every:
            column[into] = MISSING


class BoxGroup(NamedTuple):
    """Points of a box that share a structure, by place; None for all of them."""

    choice: Choice
    scheme: Scheme
    box: Box
    where: Ints | None

    @property
    def into(self) -> Any:
        """Where their figures go."""
        return slice(None) if self.where is None else self.where

    def number(self, grid: Grid) -> int:
        """The number of the first of them."""
        return grid.index(self.choice, self.box, 0 if self.where is None else int(self.where[0]))


class BoxPricer:
    """Prices the boxes of a grid. Holds what boxes share."""

    def __init__(self, grid: Grid) -> None:
        self.grid = grid
        families = [device.family if device else "none" for device in grid.devices]
        self.kinds_of_device = [kinds_of(family) for family in families]
        self.kinds = tuple(dict.fromkeys(self.kinds_of_device))
        self._keys: dict[Any, Key | int] = {}
        self._programs = Programs()
        self._usable: dict[Any, Ints] = {}

    # ---- figures

    def figures(self, choice: Choice, box: Box) -> BoxFigures:
        """Every figure that does not depend on a device's memory, valid until this thread asks for the next."""
        count = box.size
        peak, *columns = SCRATCH.array("figures", (1 + len(FIGURES) + len(self.kinds), count), np.int64)
        found = BoxFigures(
            dict(zip(FIGURES, columns, strict=False)),
            peak,
            dict(zip(self.kinds, columns[len(FIGURES) :], strict=True)),
            np.zeros(count, np.int8),
            {},
        )
        scheme = _scheme(choice)
        if scheme is None:
            found.refuse(slice(None), NO_PROGRAM)
            return found
        values = {**self.grid.values(box), "f": choice.settings.idle_mlp}
        values |= inner_values(scheme, values, values.pop("sp_inside"))
        values |= follow_where_known(values, structural(scheme))
        kernel: Kernel = KERNELS[choice.settings.kernel]
        for where in groups(alike(_marks(scheme, kernel, form_of(choice.form), values), count)):
            own = values if where is None else _taken(values, where)
            self._group(BoxGroup(choice, scheme, box, where), kernel, own, found)
        return found

    def _group(self, group: BoxGroup, kernel: Kernel, values: dict[str, Any], found: BoxFigures) -> None:
        """The rows of one structural key, written where they belong."""
        into = group.into
        size = len(found.reason) if group.where is None else len(group.where)
        key = self._key(group, values)
        if isinstance(key, int):
            found.refuse(into, key)
            return
        asked = BlockAsked(key, self.kinds, bool(_first(values["layers"]) > 1))
        always = {name: float(_first(values[name])) for name in self.grid.constant if name in values}
        try:
            found.put(block(asked, self._programs, always, values, size), into)
        except ProgramError:
            found.refuse(into, NO_PROGRAM)
            return
        if kernel.fused:
            self._trained(key, values, into, found)

    def _key(self, group: BoxGroup, values: Mapping[str, Any]) -> Key | int:
        """The key of these points, or why there is none: resolved as a plan would, for the first of them."""
        settings = group.choice.settings
        first = {symbol: int(_first(value)) for symbol, value in values.items()}
        sizes = sizes_asked(first)
        if any(need.broken(sizes) for need in group.scheme.requires):
            return REQUIREMENT
        bits = (min(first.get(symbol, 2), 2) for symbol in ("layers", *STRUCTURAL))
        signature = (group.choice.number, settings.kernel, settings.value_padding, *bits, *_padding(first))
        if signature not in self._keys:
            self._keys[signature] = self._resolved(group)
        return self._keys[signature]

    def _resolved(self, group: BoxGroup) -> Key | int:
        chosen = {name: getattr(group.choice.settings, name) for name in ("kernel", "value_padding")}
        form, model, _, settings = self.grid.point_settings(group.number(self.grid))
        try:
            return resolve(model, form, settings.model_copy(update=chosen)).key
        except Illegal:
            return NO_PROGRAM

    def padded(self, choice: Choice, box: Box) -> Any:
        """Whether V is padded: a truth value, or one for every point of a box."""
        shared = form_of(choice.form).shared_key
        kernel = KERNELS[choice.settings.kernel]
        return pads_value(kernel, shared, choice.settings.value_padding, self.grid.values(box))

    def _trained(self, key: Key, values: Mapping[str, Any], into: Any, found: BoxFigures) -> None:
        """Where an implementation of a fused kernel trains these widths, by architecture."""
        for arch in dict.fromkeys(device.arch for device in self.grid.devices if device is not None):
            known = found.trained.setdefault(arch, np.ones(len(found.reason), bool))
            known[into] = trained(KERNELS[key.kernel], arch, key, values)

    # ---- verdicts

    def usable(self, choice: Choice, box: Box, device: DeviceConfig) -> Usable:
        """Usable bytes at every point of a box; the reserve may depend on the number of ranks."""
        return Usable(*(self._spread(choice, box, device, end) for end in Usable._fields))

    def _spread(self, choice: Choice, box: Box, device: DeviceConfig, end: str) -> Any:
        """One end of it."""
        values: Any
        axis, values = self.grid.along["sp"]
        reserve = tuple(sorted(choice.settings.reserve.items()))
        key = (device.name, reserve, end)
        if self.grid.own_sp:
            values = np.arange(1, defaults.SP + 1)
        if key not in self._usable:
            ranks = values.astype(np.int64)
            left = getattr(usable(device, choice.settings, groups_of_block(SimpleNamespace(sp=ranks))), end)
            self._usable[key] = np.broadcast_to(left, ranks.shape)
        found = self._usable[key]
        if self.grid.own_sp:
            sp = np.broadcast_to(self.grid.values(box)["P"], box.size).astype(np.int64)
            return found[sp - 1]
        return found[0] if axis < 0 else self.grid.spread(f"usable {key}", found, axis, box)


# ---- structure


def _scheme(choice: Choice) -> Scheme | None:
    try:
        return scheme_of(choice.form, choice.settings.scheme)
    except Illegal:
        return None


def _first(value: Any) -> Any:
    return value[0] if isinstance(value, np.ndarray) else value


def _taken(values: Mapping[str, Any], where: Ints) -> dict[str, Any]:
    return {name: value[where] if isinstance(value, np.ndarray) else value for name, value in values.items()}


def _marks(scheme: Scheme, kernel: Kernel, form: Form | Pair, values: Mapping[str, Any]) -> Iterator[Any]:
    """Truth values on which structure depends; those that are the same all over a box are scalars."""
    sizes = sizes_asked(values)
    for need in scheme.requires:
        yield need.broken(sizes)
    yield from size_marks([values["layers"]])
    yield from structural_marks(values)
    if kernel.pads(getattr(form, "shared_key", False)):
        yield from _padding(values)


def _padding(values: Mapping[str, Any]) -> tuple[Any, Any]:
    """How wide V is beside queries and keys: as they are, and wider."""
    qk = values["k"] + values["r"]
    return values["v"] == qk, values["v"] > qk
