"""Points priced again by `plan`'s own evaluator, one at a time: the check of every run, and the words of refusals."""

from __future__ import annotations

from functools import cached_property
from typing import Any, Final

from mla_cost.batch.codes import NO_PROGRAM, REQUIREMENT, TOO_LARGE, UNTRAINED
from mla_cost.batch.scalar import refused, row
from mla_cost.inputs.config import DeviceConfig
from mla_cost.inputs.settings import PlanSettings
from mla_cost.language.evaluate import EXACT_LIMIT
from mla_cost.pricing import automatic
from mla_cost.pricing.block import block_stage
from mla_cost.pricing.resolve import Illegal, resolve
from mla_cost.pricing.step_traffic import PHASES
from mla_cost.pricing.usable import usable
from mla_cost.pricing.whole_model import groups_of_block, verdict
from mla_cost.studies.sweep.grid import Grid

_WORDS_TOO_LARGE: Final = "a byte count reaches 2^53, below which bytes are exact; make the plan smaller"
_MOST_KEPT: Final = 100_000
# what has to be exact; wire bytes of both phases are a sum of two that are, and required bytes one of ints
_LIMITED: Final = (
    *("saved_bytes", "peak_bytes", "allocated_peak_bytes", "parameter_bytes"),
    *(f"{phase}_{amount}_bytes" for phase in PHASES for amount in ("payload", "wire")),
)


class Checker:
    """The int evaluator at the points of a grid."""

    def __init__(self, grid: Grid) -> None:
        self.grid = grid

    @staticmethod
    def check_reserve(device: DeviceConfig | None, settings: PlanSettings) -> None:
        """Refuse an override of a reserve item that a device does not have, before anything is priced."""
        if device is not None:
            usable(device, settings, groups_of_block(settings))

    def expected(self, index: int) -> dict[str, int]:
        """The figures and the status of a point, as ints."""
        form, model, device, settings = self.grid.point_settings(index)
        found = row(model, device, form, settings)
        if any(found[name] >= EXACT_LIMIT for name in _LIMITED):
            return refused(settings.scope)
        return found

    def reason(self, index: int, code: int | None) -> str:
        """Why a point is refused, in the words of `plan`. Points that share what decides share the sentence."""
        if code == TOO_LARGE:
            return _WORDS_TOO_LARGE
        if code == 0:
            return ""
        deciding = self._deciding(index, code)
        if deciding not in self._sentences:
            if len(self._sentences) >= _MOST_KEPT:
                self._sentences.clear()
            self._sentences[deciding] = self._sentence(index)
        return self._sentences[deciding]

    @cached_property
    def _sentences(self) -> dict[Any, str]:
        return {}

    def _deciding(self, index: int, code: int | None) -> Any:
        choice, taken, model, device = self.grid.positions(index)
        sp, heads = self.grid.sp_of(taken, model), model.dims.heads
        if code == REQUIREMENT:
            return choice.number, taken.get("seq_len", 0), sp, heads
        widths = (choice.number, *model.dims.model_dump().values())
        if code == NO_PROGRAM:
            return code, widths, choice.settings.kernel == automatic.AUTO and device and device.name
        return (code, widths, device and device.name, sp == 1) if code == UNTRAINED else index

    def _sentence(self, index: int) -> str:
        form, model, device, settings = self.grid.point_settings(index)
        settings, _ = automatic.with_kernel(model, device, form, settings)
        try:
            point = resolve(model, form, settings)
            cost = block_stage(point, device.family if device else "none", settings.layers)
        except Illegal as error:
            return str(error)
        if device is None:
            return ""
        found = verdict(model, device, settings, point, cost.peak)
        return found.reason if found.status == "unsupported" else ""
