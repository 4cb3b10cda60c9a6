"""Prices columns of points: legal ones to layers, layers to stages, the worst stage to a row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property, lru_cache
from itertools import product
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from mla_cost.batch import scalar, verdicts
from mla_cost.batch.busiest import Busiest
from mla_cost.batch.codes import ILLEGAL, KERNEL_NAMES, NO_PROGRAM, NONE, TOO_LARGE, UNTRAINED
from mla_cost.batch.composed import AXES, Composed
from mla_cost.batch.legality import refused
from mla_cost.batch.matrices import Ints
from mla_cost.batch.points import NOT_OF_LAYERS, Choices, Points
from mla_cost.batch.tile import Shared, Tile, Worst
from mla_cost.batch.traffic import Traffic
from mla_cost.declared import defaults
from mla_cost.errors import InputError
from mla_cost.inputs.config import DeviceConfig, ModelConfig
from mla_cost.inputs.settings import PlanSettings
from mla_cost.language.evaluate import FENCE
from mla_cost.pricing import automatic
from mla_cost.pricing.resolve import Illegal, named
from mla_cost.pricing.unpriced import refusal
from mla_cost.pricing.usable import status

TILE: Final = 1 << 14  # points at once: what they need should stay near a core
_TOO_LARGE: Final = "a byte count reaches 2^53, below which bytes are exact; make the plan smaller"


def price(
    model: ModelConfig,
    device: DeviceConfig | None,
    form: str,
    settings: PlanSettings,
    columns: Mapping[str, Sequence[int | str] | NDArray[Any]],
    *,
    busiest: bool = False,
) -> Composed:
    """Every point of columns of one length: fields of a plan that vary; all others are as the settings have them.

    busiest: work out `busiest_wire_bytes` and `busiest_flops` too.

    Each number is what `mla_cost.plan` at the model scope prints, to the byte: `Composed.check` compares some.

    Raises:
        InputError: a field or a name that does not exist, columns of several lengths.

    """
    points = Points(settings, columns)
    pricer = Pricer(model, device, form, busiest=busiest)
    found = Composed(points.size, KERNEL_NAMES, pricer.told(points), pricer.expected(points))
    for start in range(0, points.size, TILE):
        pricer.fill(points.part(slice(start, start + TILE)), start, found)
    return found


@lru_cache(maxsize=4)
def _shared(facts: str) -> Shared:
    return Shared(ModelConfig.model_validate_json(facts))


class Pricer:
    """Prices points of one form of a model on one device."""

    def __init__(self, model: ModelConfig, device: DeviceConfig | None, form: str, *, busiest: bool = False) -> None:
        self.model, self.device, self.form, self.busiest = model, device, form, busiest
        self._shared = _shared(model.model_dump_json())
        self._kernels: dict[tuple[Any, ...], PlanSettings] = {}

    @cached_property
    def priced(self) -> bool:
        """Whether all layers of the model are priced."""
        if refusal(self.model) is not None:
            return False
        try:
            self._shared.names(defaults.PROFILE)
        except Illegal:
            return False
        return True

    # ---- refusals and the check

    def told(self, points: Points) -> Any:
        """A function from a point and its code to the words of a plan."""

        def reason(at: int, code: int) -> str:
            if code == TOO_LARGE:
                return _TOO_LARGE
            return scalar.reason(self.model, self.device, self.form, points.settings(at), self.with_kernel)

        return reason

    def expected(self, points: Points) -> Any:
        """A function from a point to its row by `plan`."""
        return lambda at: scalar.row(self.model, self.device, self.form, points.settings(at))

    def with_kernel(self, settings: PlanSettings) -> PlanSettings:
        """The settings with a kernel in place of `auto`, as a plan chooses it, once for all that decides it.

        Raises:
            InputError: settings that name what does not exist.

        """
        if settings.kernel != automatic.AUTO:
            return settings
        key = tuple(getattr(settings, name) for name in automatic.DECIDING_SETTINGS)
        if key not in self._kernels:
            self._kernels[key], _ = automatic.with_kernel(self.model, self.device, self.form, settings)
        chosen = self._kernels[key]
        return settings.model_copy(update={"kernel": chosen.kernel, "value_padding": chosen.value_padding})

    def _chosen(self, settings: PlanSettings) -> PlanSettings:
        """As `with_kernel`; settings that are bad input stay as they are and are refused with their layers."""
        try:
            return self.with_kernel(settings)
        except InputError:
            return settings

    # ---- numbers

    def fill(self, points: Points, start: int, found: Composed) -> None:
        """Price points and put them where they belong, from `start`."""
        here = slice(start, start + points.size)
        choices = points.choices(NOT_OF_LAYERS)
        chosen = Choices(tuple(map(self._chosen, choices.settings)), choices.codes)
        code = refused(self.model, points) if self.priced else np.full(points.size, NO_PROGRAM, np.int8)
        alive = np.flatnonzero(code == 0)
        if len(alive):
            some = Choices(chosen.settings, chosen.codes[alive])
            code[alive] = self._put(points.part(alive), some, start + alive, found)
        illegal = (code != 0) & (code != UNTRAINED)
        found.reason[here] = code
        found.status[here][illegal] = ILLEGAL
        found.kernel[here] = np.where(illegal, _kernels(choices), _kernels(chosen))

    def _put(self, points: Points, choices: Choices, where: Ints, found: Composed) -> Any:
        """Put the numbers of points that no rule refuses into the rows `where`; the codes of those that layers do."""
        tile = Tile(self._shared, self.device, self.form, points, choices)
        if not len(tile.alive):
            return tile.code
        worst = tile.worst(busiest=self.busiest)
        traffic = Traffic(tile, worst)
        exact = worst.peak < FENCE
        for amount in ("payload", "wire"):
            exact &= traffic.total(amount) < FENCE
        tile.code[tile.alive[~exact]] = TOO_LARGE
        rows = _Rows(where[tile.alive[exact]], exact, found)
        rows.memory(worst)
        rows.traffic(traffic, tile.busiest)
        rows.put(found.worst_stage, np.array([stage.stage for stage in tile.stages])[worst.stage])
        tile.code[tile.alive[exact]] = self._judged(tile, worst, rows, found)
        return tile.code

    def _judged(self, tile: Tile, worst: Worst, rows: _Rows, found: Composed) -> Any:
        """The verdict on what the device has; the codes of rows that no kernel trains."""
        required = rows.of(worst.peak).astype(np.int64) + rows.of(verdicts.other_memory(tile.points))
        free = rows.of(verdicts.usable_bytes(self.model, tile.points, self.device))
        trained = rows.of(tile.table.trained[tile.which])
        found.required_bytes[rows.where], found.usable_bytes[rows.where] = required, free
        found.status[rows.where] = NONE
        if self.device is not None:
            found.headroom_bytes[rows.where] = free - required
            found.status[rows.where] = status(free - required, free, trained)
        return np.where(trained, 0, UNTRAINED)


class _Rows:
    """The rows of those points of a tile that are exact: where they are, and which of the alive ones have them."""

    def __init__(self, where: Ints, exact: NDArray[np.bool_], found: Composed) -> None:
        self.where, self._exact, self._found = where, exact, found

    def of(self, values: Any) -> Any:
        """Values of the alive points, for the rows."""
        return values[self._exact]

    def put(self, column: NDArray[Any], values: Any) -> None:
        """Write a value of each alive point into a column."""
        column[self.where] = values[self._exact]

    def memory(self, worst: Worst) -> None:
        """Where the bytes of the worst stage go."""
        weights, gradients, optimizer, _ = worst.states
        after = worst.step > worst.active  # the optimizer step holds more than the schedule did
        figures = {
            "peak_bytes": worst.peak,
            "state_bytes": worst.states.sum(axis=0),
            "weight_bytes": weights,
            "gradient_bytes": gradients,
            "optimizer_bytes": optimizer,
            "standing_bytes": worst.standing,
            "saved_bytes": worst.saved,
            "active_bytes": worst.active,
            "kept_bytes": np.where(after, 0, worst.kept),
            "working_bytes": np.where(after, worst.step, worst.active - worst.kept),
        }
        for name, values in figures.items():
            self.put(getattr(self._found, name), values)

    def traffic(self, sent: Traffic, busiest: Busiest | None) -> None:
        """What is sent and run."""
        found = self._found
        self.put(found.wire_bytes, sent.total("wire"))
        for phase, amount in product(("forward", "backward"), ("payload", "wire")):
            self.put(getattr(found, f"{phase}_{amount}_bytes"), sent.total(amount, phase))
        for axis in AXES:
            self.put(found.wire_by_axis[axis], sent.total("wire", axis))
        for column, flops in zip((found.flops_model, found.flops_executed), sent.flops(), strict=True):
            self.put(column, flops)
        if busiest is not None:
            self.put(found.busiest_wire_bytes, busiest.wire)
            self.put(found.busiest_flops, busiest.executed)
            for axis, column in zip(AXES, busiest.by_axis, strict=True):
                self.put(found.busiest_by_axis[axis], column)


def _kernels(choices: Choices) -> Any:
    """The kernel of every point, as a place in KERNEL_NAMES.

    Raises:
        InputError: an unknown name.

    """
    place = {name: at for at, name in enumerate(KERNEL_NAMES)}
    each = [named("kernel", settings.kernel, place) for settings in choices.settings]
    return np.array(each, np.int16)[choices.codes]
