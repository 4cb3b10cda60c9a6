"""A box of points priced at once: rows grouped by structural key, each group one matrix product over its monomials."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mla_cost.batch import matrices
from mla_cost.batch.codes import MISSING, NO_PROGRAM, REQUIREMENT, TOO_LARGE
from mla_cost.batch.matrices import OTHERS, SCRATCH, Folded, Ints, fold, fold_further
from mla_cost.batch.requirements import fails
from mla_cost.batch.workspace import fused_workspace
from mla_cost.declared import defaults
from mla_cost.declared.forms import FORMS
from mla_cost.declared.kernels import KERNELS
from mla_cost.declared.schemes import SCHEMES
from mla_cost.inputs.config import DeviceConfig
from mla_cost.inputs.settings import PlanSettings
from mla_cost.language.evaluate import FENCE
from mla_cost.language.program import Form, Kernel, Pair, ProgramError, Scheme
from mla_cost.language.workspace import kinds_of
from mla_cost.pricing.compile import Key, form_of, timeline
from mla_cost.pricing.resolve import Illegal, resolve, scheme_of
from mla_cost.pricing.verdict import reserve_items
from mla_cost.studies.sweep.grid import WIDTHS, Box, Choice, Grid
from mla_cost.studies.sweep.moments import FIGURES, MORE, Kinds, rows

_BITS: Final = ("layers", "P", "s", "b", "l", "n", "h", "d_q", "d_c", "k", "r", "v", "r_half")


class Figures(NamedTuple):
    """What a box costs, before devices: int64 arrays, MISSING where illegal."""

    columns: dict[str, Ints]
    peak: Ints
    allocated: dict[Kinds, Ints]
    reason: NDArray[np.int8]
    trained: dict[str, NDArray[np.bool_]]  # by architecture; none where every kernel trains


class Pricer:
    """Prices the boxes of a grid. Holds what boxes share."""

    def __init__(self, grid: Grid) -> None:
        self.grid = grid
        families = [device.family if device else "none" for device in grid.devices]
        self.kinds_of_device = [kinds_of(family) for family in families]
        self.kinds = tuple(dict.fromkeys(self.kinds_of_device))
        self._keys: dict[Any, Key | int] = {}
        self._folded: dict[tuple[Key, bool], Folded] = {}
        self._usable: dict[Any, Ints] = {}

    # ---- figures

    def figures(self, choice: Choice, box: Box) -> Figures:
        """Every figure that does not depend on a device's memory, valid until this thread asks for the next."""
        count = box.size
        peak, *columns = SCRATCH.array("figures", (1 + len(FIGURES) + len(self.kinds), count), np.int64)
        found = Figures(
            dict(zip(FIGURES, columns, strict=False)),
            peak,
            dict(zip(self.kinds, columns[len(FIGURES) :], strict=True)),
            np.zeros(count, np.int8),
            {},
        )
        scheme = _scheme(choice)
        if scheme is None:
            _refuse(found, slice(None), NO_PROGRAM)
            return found
        values = _local({**self.grid.values(box), "f": choice.settings.idle_mlp}, scheme)
        kernel: Kernel = KERNELS[choice.settings.kernel]
        code = _code(scheme, kernel, form_of(choice.form), values, count)
        for where in _groups(code):
            own = values if where is None else _taken(values, where)
            self._group(choice, kernel, own, where, found)
        return found

    def _group(
        self, choice: Choice, kernel: Kernel, values: dict[str, Any], where: Ints | None, found: Figures
    ) -> None:
        """The rows of one structural key, written where they belong."""
        into: Any = slice(None) if where is None else where
        size = len(found.reason) if where is None else len(where)
        key = self._key(choice, values)
        if isinstance(key, int):
            _refuse(found, into, key)
            return
        stacked = bool(_first(values["layers"]) > 1)
        try:
            calls = timeline(key).fused_calls
        except ProgramError:
            _refuse(found, into, NO_PROGRAM)
            return
        if stacked:
            values[MORE] = values["layers"] - 2
        for call in calls:
            values["fused_workspace"] = fused_workspace(kernel, key.facts, call, values)
        self._evaluate(self._rows(key, stacked, values), values, size, into, found)
        if kernel.fused:
            self._trained(key, values, size, into, found)

    def _key(self, choice: Choice, values: Mapping[str, Any]) -> Key | int:
        """The key of these points, or why there is none: resolved as a plan would, for the first of them."""
        first = {symbol: int(_first(value)) for symbol, value in values.items()}
        kernel = choice.settings.kernel, choice.settings.value_padding
        signature = (choice.number, kernel, *(min(first.get(symbol, 2), 2) for symbol in _BITS), _padding_class(first))
        refused = _refused_requirement(SCHEMES[_scheme_name(choice)], first)
        if refused:
            return REQUIREMENT
        if signature not in self._keys:
            self._keys[signature] = self._resolved(choice, first)
        return self._keys[signature]

    def _resolved(self, choice: Choice, first: Mapping[str, int]) -> Key | int:
        model = self.grid.models[0]
        dims = model.dims.model_copy(
            update={field: first[symbol] or (None if symbol == "d_q" else 0) for symbol, field in WIDTHS.items()}
        )
        sizes = {"seq_len": first["S"], "sp": first["P"], "micro_batch": first["b"], "layers": first["layers"]}
        try:
            point = resolve(
                model.model_copy(update={"dims": dims}), choice.form, choice.settings.model_copy(update=sizes)
            )
        except Illegal:
            return NO_PROGRAM
        return point.key

    def _rows(self, key: Key, stacked: bool, values: Mapping[str, Any]) -> Folded:
        """The rows of a program over what varies in this grid, then over what varies in this box."""
        found = self._folded.get((key, stacked))
        if found is None:
            always = {name: float(_first(values[name])) for name in self.grid.constant if name in values}
            found = self._folded[key, stacked] = fold(*rows(key, self.kinds, stacked), always)
        here = {name: float(value) for name, value in values.items() if not isinstance(value, np.ndarray)}
        return fold_further(found, here)

    def _evaluate(self, program: Folded, values: Mapping[str, Any], size: int, into: Any, found: Figures) -> None:
        """One matrix product for the figures and every moment; a peak is the largest of its moments."""
        result = matrices.evaluated(program, values, size)
        beyond = np.flatnonzero(result.max(axis=0) >= FENCE) if result.max() >= FENCE else None
        figures, seen, *allocated = (result[span] for span in program.spans)
        columns = [*zip(found.columns.values(), figures, strict=True), (found.peak, matrices.top(seen))]
        columns += [
            (found.allocated[kinds], matrices.top(moments))
            for kinds, moments in zip(self.kinds, allocated, strict=True)
        ]
        for column, exact in columns:
            if beyond is not None:
                exact[beyond] = MISSING
            column[into] = exact
        if beyond is not None:
            found.reason[beyond if isinstance(into, slice) else into[beyond]] = TOO_LARGE

    def _trained(self, key: Key, values: Mapping[str, Any], size: int, into: Any, found: Figures) -> None:
        """Where an implementation of a fused kernel trains these widths, by architecture."""
        form = form_of(key.form)
        qk = key.facts.size(key.facts.present(form.qk)).at(values)
        v = qk if key.value_padding != "none" else key.facts.size(form.value).at(values)
        for arch in dict.fromkeys(device.arch for device in self.grid.devices if device is not None):
            known = found.trained.setdefault(arch, np.ones(len(found.reason), bool))
            known[into] = _trains(KERNELS[key.kernel], arch, (qk, v, key.dtype), size)

    # ---- verdicts

    def usable(self, choice: Choice, box: Box, device: DeviceConfig) -> Any:
        """Usable bytes at every point of a box; the reserve may depend on the number of ranks."""
        values: Any
        axis, values = self.grid.symbols["P"]
        reserve = tuple(sorted(choice.settings.reserve.items()))
        key = (device.name, reserve)
        if self.grid.own_sp:
            values = np.arange(1, defaults.SP + 1)
        if key not in self._usable:
            self._usable[key] = np.array(
                [_usable(device, choice.settings.model_copy(update={"sp": int(sp)})) for sp in values], np.int64
            )
        found = self._usable[key]
        if self.grid.own_sp:
            sp = np.broadcast_to(self.grid.values(box)["P"], box.size).astype(np.int64)
            return found[sp - 1]
        return found[0] if axis < 0 else self.grid.spread(f"usable {key}", found, axis, box)


def _refuse(found: Figures, into: Any, reason: int) -> None:
    found.reason[into] = reason
    for column in (*found.columns.values(), found.peak, *found.allocated.values()):
        column[into] = MISSING


def _usable(device: DeviceConfig, settings: PlanSettings) -> int:
    reserve = reserve_items(device, settings, {"sp": settings.sp})
    return device.visible_bytes.integer - sum(item.bytes for item in reserve)


# ---- structure


def _scheme_name(choice: Choice) -> str:
    return choice.settings.scheme or FORMS[choice.form].scheme


def _scheme(choice: Choice) -> Scheme | None:
    try:
        return scheme_of(choice.form, choice.settings.scheme)
    except Illegal:
        return None


def _local(values: dict[str, Any], scheme: Scheme) -> dict[str, Any]:
    """With s, l and r_half; s and l are whole wherever the scheme's requirements hold."""
    values["s"] = values["u"] = np.floor(values["S"] / values["P"])
    if scheme.divides_heads:
        values["l"] = np.floor(values["n"] / values["P"])
    values[OTHERS["P"]] = values["P"] - 1
    values["r_half"] = np.floor(values["r"] / 2)
    return values


def _first(value: Any) -> Any:
    return value[0] if isinstance(value, np.ndarray) else value


def _taken(values: Mapping[str, Any], where: Ints) -> dict[str, Any]:
    return {name: value[where] if isinstance(value, np.ndarray) else value for name, value in values.items()}


def _code(scheme: Scheme, kernel: Kernel, form: Form | Pair, values: Mapping[str, Any], count: int) -> Ints:
    """A number per point: points with the same one have the same key, or are refused by the same requirements."""
    code: Any = np.zeros(count, np.int64)
    bit = 1
    for mark in _marks(scheme, kernel, form, values):
        if isinstance(mark, np.ndarray):
            if mark.any():
                code += mark * np.int64(bit)
            bit <<= 1
    return np.asarray(code)


def _marks(scheme: Scheme, kernel: Kernel, form: Form | Pair, values: Mapping[str, Any]) -> Iterator[Any]:
    """Truth values on which structure depends; those that are the same all over a box are scalars."""
    for need in scheme.requires:
        yield fails(need, values)
    for symbol in _BITS:
        if isinstance(values.get(symbol), np.ndarray):
            yield values[symbol] == 1
    yield values["layers"] > 1
    yield values["d_q"] == 0
    yield values["r"] == 0
    if kernel.pads(getattr(form, "shared_key", False)):
        yield values["v"] == values["k"] + values["r"]
        yield values["v"] > values["k"] + values["r"]


def _refused_requirement(scheme: Scheme, first: Mapping[str, int]) -> bool:
    return any(bool(fails(need, first)) for need in scheme.requires)


def _padding_class(first: Mapping[str, int]) -> int:
    qk = first["k"] + first["r"]
    return (first["v"] == qk) + 2 * (first["v"] > qk)


def _groups(code: Ints) -> Iterator[Ints | None]:
    """The rows of each code; None for all of them."""
    if (code == code[0]).all():
        yield None
        return
    for each in np.flatnonzero(np.bincount(code)) if code.max() < len(code) else np.unique(code):
        yield np.flatnonzero(code == each)


# ---- what trains


def _trains(kernel: Kernel, arch: str, heads: tuple[Any, Any, str], size: int) -> Any:
    """heads: widths of Q and K and of V, numbers or arrays, and the dtype."""
    qk, v, dtype = heads
    if not isinstance(qk, np.ndarray) and not isinstance(v, np.ndarray):
        return any(limit.trains(arch, int(qk), int(v), dtype) for limit in kernel.limits)
    both = np.broadcast_to(qk, size) * float(1 << 20) + np.broadcast_to(v, size)
    pairs, which = np.unique(both, return_inverse=True)
    able = [
        any(limit.trains(arch, int(pair) >> 20, int(pair) & ((1 << 20) - 1), dtype) for limit in kernel.limits)
        for pair in pairs
    ]
    return np.array(able)[which]
