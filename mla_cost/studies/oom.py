"""An out-of-memory error beside a plan: what was asked for, where memory went, and what would have fitted."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from mla_cost import api
from mla_cost.errors import InputError
from mla_cost.explaining.allocations import Made, allocations
from mla_cost.inputs import catalog
from mla_cost.inputs.command import command_of
from mla_cost.inputs.oom_text import OutOfMemory
from mla_cost.inputs.settings import PlanSettings
from mla_cost.results import Result

SCHEMA: Final = "mla-cost/oom/1"
_RESERVED: Final = "reserve: "
_FRAGMENTATION: Final = "allocator fragmentation"
_NEAR: Final = 3


class Postmortem(NamedTuple):
    """What an error says beside a plan. Bytes.

    asked: the storages of the plan that print the size that was tried; near: the nearest in size where none does.
    planned: the plan's allocated peak; short: what was missing beside what torch had and could not use.
    uncounted: what the run needed at that moment beyond the plan's peak, zero where it needed less.
    change: the smallest change with which the run would have fitted, command: the plan with it; None where none does.
    calibrated: the settings in which the card has what this error leaves torch, with the change in place.
    """

    error: OutOfMemory
    form: str
    device: str
    asked: tuple[Made, ...]
    near: tuple[Made, ...]
    planned: int
    short: int
    uncounted: int
    change: str | None
    command: str | None
    calibrated: PlanSettings | None

    @property
    def parts(self) -> tuple[tuple[str, int], ...]:
        """Where the device's memory went; the parts add up to its total."""
        it = self.error
        said = it.free + it.allocated + it.unallocated + it.outside
        return (
            ("allocated by torch", it.allocated),
            ("reserved by torch and unallocated (fragmentation)", it.unallocated),
            ("outside torch: contexts, communication buffers, other processes", it.outside),
            ("free", it.free + it.total - said),
        )

    def to_dict(self) -> dict[str, Any]:
        """The JSON object."""
        return {
            "schema": SCHEMA, "form": self.form, "device": self.device,
            "error": {**self.error._asdict(), "outside": self.error.outside},
            "parts": dict(self.parts), "asked": [each._asdict() for each in self.asked],
            "near": [each._asdict() for each in self.near], "planned_bytes": self.planned,
            "short_bytes": self.short, "uncounted_bytes": self.uncounted, "change": self.change,
            "command": self.command,
        }  # fmt: skip


def examine(error: OutOfMemory, settings: PlanSettings) -> Postmortem:
    """An error beside the first form and device of a plan.

    Raises:
        InputError: no device, one of another kind than the error's, or a plan that cannot be priced.

    """
    if not settings.device:
        raise InputError("name the device that ran out of memory", field="--device")
    one = settings.model_copy(update={"device": settings.device[:1], "form": settings.form[:1]})
    device = catalog.device(one.device[0])
    if device.family != error.family:
        what = f"the error is of {error.family}, and {device.name} is of {device.family}"
        raise InputError(what, field="--device")
    row = api.answer(one, timed=False).results[0]
    peak = row.memory.allocated_peak_bytes
    if peak is None or row.verdict is None:
        raise InputError(row.verdict.reason if row.verdict else "the plan has no numbers")
    by_scope = one.by_scope() if one.scope == "model" else api.with_usual_sp(one.by_scope())
    made = allocations(api.model_with_dims(by_scope), device, by_scope, row)
    asked = tuple(each for each in made if error.asked_for(each.bytes))
    needed = error.allocated + error.tried
    change, command, calibrated = _change(error, one, row, peak)
    return Postmortem(
        error, row.form, device.name, asked, () if asked else _nearest(error, made), peak,
        max(0, error.tried - error.free), max(0, needed - peak), change, command, calibrated,
    )  # fmt: skip


def _nearest(error: OutOfMemory, made: list[Made]) -> tuple[Made, ...]:
    """The storages nearest in size, each size once."""
    sizes = {each.bytes: each for each in reversed(made) if each.bytes}
    return tuple(sizes[size] for size in sorted(sizes, key=lambda size: abs(size - error.tried))[:_NEAR])


def _change(
    error: OutOfMemory, settings: PlanSettings, row: Result, peak: int
) -> tuple[str | None, str | None, PlanSettings | None]:
    """The smallest change that fits on a card that leaves torch what this one did, for a run that needs what it did."""
    room = error.total - error.outside - error.unallocated
    more = max(0, error.allocated + error.tried - peak)
    own = settings.model_copy(update={**_reserved(row, room), "other_memory": more, "fragmentation_percent": 0})
    own = type(own).model_validate({name: getattr(own, name) for name in own.model_fields_set})
    verdict = api.with_levers(own).results[0].verdict
    if verdict is None or verdict.remedy is None:
        return None, None, None
    lever = next((each for each in verdict.levers if verdict.remedy.startswith(each.change)), None)
    if lever is None:
        return verdict.remedy, None, None
    changed = settings.model_copy(update=dict(lever.settings))
    return verdict.remedy, command_of(changed.by_scope()), own.model_copy(update=dict(lever.settings))


def _reserved(row: Result, room: int) -> dict[str, Any]:
    """The reserve that leaves so much of what the device shows torch: one item has it all, the others nothing."""
    assert row.verdict is not None
    visible = next(each.bytes for each in row.verdict.basis if each.name == "visible memory")
    names = [each.name.removeprefix(_RESERVED) for each in row.verdict.basis if each.name.startswith(_RESERVED)]
    kept = [name for name in names if name != _FRAGMENTATION]
    return {"reserve": {name: max(0, visible - room) * (at == 0) for at, name in enumerate(kept)}}
