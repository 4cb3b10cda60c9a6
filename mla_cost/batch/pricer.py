"""Prices columns of points: legal ones to layers, layers to stages, the worst stage to a row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property, lru_cache
from typing import Any, Final, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mla_cost.batch import scalar, verdicts
from mla_cost.batch.codes import ILLEGAL, KERNEL_NAMES, MISSING, NO_PROGRAM, NONE, TIGHT, TOO_LARGE, UNTRAINED
from mla_cost.batch.composed import Composed
from mla_cost.batch.legality import refused
from mla_cost.batch.matrices import Floats, Ints
from mla_cost.batch.points import ALIKE, NOT_OF_LAYERS, Choices, Points
from mla_cost.batch.step_times import StepTimes, step_times
from mla_cost.batch.tile import Shared, Tile, Worst
from mla_cost.batch.traffic import Work, most_of_stages, worst_stage
from mla_cost.declared import defaults
from mla_cost.declared.kernels import KERNELS
from mla_cost.errors import InputError
from mla_cost.inputs.config import DeviceConfig, ModelConfig
from mla_cost.inputs.settings import PlanSettings
from mla_cost.language.evaluate import EXACT_LIMIT
from mla_cost.pricing import automatic
from mla_cost.pricing.key import form_of
from mla_cost.pricing.resolve import Illegal, named, pads_value
from mla_cost.pricing.step_traffic import Most, Totals
from mla_cost.pricing.unpriced import refusal
from mla_cost.pricing.usable import status
from mla_cost.timing.ceilings import has_ceilings

Timed = Literal["none", "fitting", "all"]
TILE: Final = 1 << 14  # points at once: what they need should stay near a core
_TOO_LARGE: Final = "a byte count reaches 2^53, below which bytes are exact; make the plan smaller"


def price(
    model: ModelConfig,
    device: DeviceConfig | None,
    form: str,
    settings: PlanSettings,
    columns: Mapping[str, Sequence[int | str] | NDArray[Any]],
    timed: Timed = "none",
) -> Composed:
    """Every point of columns of one length: fields of a plan that vary; all others are as the settings have them.

    Each number is what `mla_cost.plan` at the model scope prints, to the byte: `Composed.check` compares some. timed:
    which points are asked how long their steps take; those of others are missing.

    Raises:
        InputError: a field or a name that does not exist, columns of several lengths.

    """
    points = Points(settings, columns)
    pricer = PointPricer(model, device, form, timed)
    expected = pricer.expected(points)
    found = Composed(points.size, KERNEL_NAMES, pricer.reported(points), expected, timed=timed != "none")
    for start in range(0, points.size, TILE):
        pricer.fill(points.part(slice(start, start + TILE)), start, found)
    return found


@lru_cache(maxsize=4)
def _shared(facts: str) -> Shared:
    return Shared(ModelConfig.model_validate_json(facts))


class PointPricer:
    """Prices points of one form of a model on one device."""

    def __init__(self, model: ModelConfig, device: DeviceConfig | None, form: str, timed: Timed = "none") -> None:
        self.model, self.device, self.form, self.timed = model, device, form, timed
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

    def reported(self, points: Points) -> Any:
        """A function from a point and its code to the words of a plan."""

        def reason(at: int, code: int) -> str:
            if code == TOO_LARGE:
                return _TOO_LARGE
            return scalar.reason(self.model, self.device, self.form, points.settings(at), self.with_kernel)

        return reason

    def expected(self, points: Points) -> Any:
        """A function from a point to its row by `plan`."""
        timed = self.timed != "none"
        return lambda at: scalar.row(self.model, self.device, self.form, points.settings(at), timed=timed)

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
        choices = points.choices(NOT_OF_LAYERS, ALIKE)
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
        found.padding[here] = ~illegal & self._padded(chosen)

    def _padded(self, choices: Choices) -> Any:
        """Whether V of every point is padded."""
        dims = self.model.dims
        widths = {"k": dims.qk_nope_head_dim, "r": dims.qk_rope_head_dim, "v": dims.v_head_dim}
        shared = form_of(self.form).shared_key
        each = [
            settings.kernel in KERNELS and pads_value(KERNELS[settings.kernel], shared, settings.value_padding, widths)
            for settings in choices.settings
        ]
        return np.array(each, bool)[choices.codes]

    def _put(self, points: Points, choices: Choices, where: Ints, found: Composed) -> Any:
        """Put the numbers of points that no rule refuses into the rows `where`; the codes of those that layers do."""
        tile = Tile(self._shared, self.device, self.form, points, choices)
        if not len(tile.alive):
            return tile.code
        worst = tile.worst()
        work, most = worst_stage(tile, worst), most_of_stages(tile)
        exact = np.maximum(worst.peak, np.maximum(work.sent.payload(), most.wire_bytes)) < EXACT_LIMIT
        tile.code[tile.alive[~exact]] = TOO_LARGE
        rows = _Rows(where[tile.alive[exact]], exact)
        many = self._many(tile, worst, work, most, exact)
        trained = tile.table.trained[tile.which]
        verdict = self._status(many, trained)
        many = many._replace(times=self._times(tile, exact, verdict))
        for figure in found.figures:
            rows.put(found.columns[figure.name], figure.of_many(many))
        rows.put_most(found.most, most)
        tile.code[tile.alive[exact]] = np.where(trained, 0, UNTRAINED)[exact]
        rows.put(found.status, verdict)
        return tile.code

    def _times(self, tile: Tile, exact: NDArray[np.bool_], verdict: Any) -> StepTimes | None:
        """Steps of those points alive that are asked; MISSING at the others."""
        if self.timed == "none":
            return None
        found = StepTimes(*np.full((len(StepTimes._fields), tile.points.size), float(MISSING)))
        asked = np.flatnonzero(exact & (verdict <= TIGHT) if self.timed == "fitting" else exact)
        if self.device is not None and has_ceilings(self.device) and len(asked):
            for column, values in zip(found, step_times(tile, asked, self.device), strict=True):
                column[asked] = values
        return found

    def _status(self, many: _Many, trained: Any) -> Any:
        """The verdict on what the device has; none without a device."""
        if self.device is None:
            return np.full(len(many.headroom), NONE, np.int8)
        return np.asarray(status(many.headroom, many.usable, trained), np.int8)

    def _many(self, tile: Tile, worst: Worst, work: Work, most: Most, exact: NDArray[np.bool_]) -> _Many:
        """All that is reported of the points alive; what no double holds exactly is 0, and reported of no row."""
        number = np.array([stage.stage for stage in tile.stages])[worst.stage]
        required = np.where(exact, worst.peak, 0).astype(np.int64) + verdicts.other_memory(tile.points)
        usable, least = verdicts.usable_bytes(self.model, tile.points, self.device)
        left, least_left = (
            np.full_like(each, MISSING) if self.device is None else each - required for each in (usable, least)
        )
        return _Many(worst, *work, most, number, required, usable, left, least_left)


class _Many(NamedTuple):
    """As `columns.Many`."""

    worst: Worst
    sent: Totals
    flops: Floats
    most: Most
    stage: Ints
    required: Ints
    usable: Ints
    headroom: Ints
    least_headroom: Ints
    times: StepTimes | None = None


class _Rows(NamedTuple):
    """The rows of those points of a tile that are exact: where they are, and which of the alive ones have them."""

    where: Ints
    exact: NDArray[np.bool_]

    def put(self, column: NDArray[Any], values: Any) -> None:
        """Write a value of each alive point into a column."""
        column[self.where] = values[self.exact]

    def put_most(self, into: Most, most: Most) -> None:
        """What the stages send and run that send and run most."""
        self.put(into.wire_bytes, most.wire_bytes)
        self.put(into.executed, most.executed)
        for axis, column in into.by_axis.items():
            self.put(column, most.by_axis[axis])


def _kernels(choices: Choices) -> Any:
    """The kernel of every point, as a place in KERNEL_NAMES.

    Raises:
        InputError: an unknown name.

    """
    place = {name: at for at, name in enumerate(KERNEL_NAMES)}
    each = [named("kernel", settings.kernel, place) for settings in choices.settings]
    return np.array(each, np.int16)[choices.codes]
