"""A recorded memory snapshot beside the predicted timeline of a plan: what is in both, and what is in one alone."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final, NamedTuple

from mla_cost import api
from mla_cost.errors import InputError
from mla_cost.explaining.timelines import TimelineStep, timeline
from mla_cost.inputs import catalog
from mla_cost.inputs.settings import PlanSettings
from mla_cost.inputs.snapshots import Recorded, rounded, write
from mla_cost.results import Result

SCHEMA: Final = "mla-cost/snapshot/1"
_SMALLEST: Final = 2**20


class StorageGroup(NamedTuple):
    """The storages of one size. recorded, predicted: how many; frames: of the first recorded; names: predicted."""

    bytes: int
    recorded: int
    predicted: int
    frames: tuple[str, ...]
    names: tuple[str, ...]

    @property
    def delta(self) -> int:
        """Bytes that the recording has more."""
        return (self.recorded - self.predicted) * self.bytes


class SnapshotComparison(NamedTuple):
    """A snapshot beside a plan. Bytes. matched: storages that are in both, by size and in order.

    small: storages under 1 MiB, which are counted together. groups: by size, the largest difference first.
    """

    form: str
    device: str | None
    recorded_peak: int
    recorded_base: int
    predicted_peak: int
    fragmentation: int
    matched: int
    matched_bytes: int
    only_recorded: int
    only_predicted: int
    small_recorded: int
    small_predicted: int
    groups: tuple[StorageGroup, ...]

    def to_dict(self) -> dict[str, Any]:
        """The JSON object."""
        groups = [{**each._asdict(), "delta": each.delta} for each in self.groups]
        return {"schema": SCHEMA, **self._asdict(), "groups": groups}


def write_timeline(settings: PlanSettings, path: Path) -> None:
    """Write the predicted timeline of the first form and device of a plan, as PyTorch's memory viewer opens it.

    Raises:
        InputError: a plan that has no figures, or a file that cannot be written.

    """
    write(path, _predicted(settings)[1])


def _predicted(settings: PlanSettings) -> tuple[Result, list[TimelineStep]]:
    """The first form on the first device, and its timeline."""
    one = settings.model_copy(update={"device": settings.device[:1], "form": settings.form[:1]})
    row = api.answer(one, timed=False).results[0]
    if row.memory.allocated_peak_bytes is None:
        raise InputError(row.verdict.reason if row.verdict else "the plan has no figures")
    by_scope = one.by_scope() if one.scope == "model" else api.with_usual_sp(one.by_scope())
    device = catalog.device(one.device[0]) if one.device else None
    return row, timeline(api.model_with_dims(by_scope), device, by_scope, row)


def compare(recorded: Recorded, settings: PlanSettings) -> SnapshotComparison:
    """A recording beside the first form and device of a plan.

    Raises:
        InputError: a plan that has no figures.

    """
    row, steps = _predicted(settings)
    made = [(rounded(step.bytes), step.frames[0]) for step in steps if step.action == "alloc"]
    groups = _groups(recorded, made)
    matched = [(min(each.recorded, each.predicted), each.bytes) for each in groups]
    differing = sorted((each for each in groups if each.delta), key=lambda each: (-abs(each.delta), -each.bytes))
    return SnapshotComparison(
        form=row.form, device=row.device, recorded_peak=recorded.peak, recorded_base=recorded.base,
        predicted_peak=row.memory.allocated_peak_bytes or 0, fragmentation=recorded.fragmentation,
        matched=sum(count for count, _ in matched), matched_bytes=sum(count * size for count, size in matched),
        only_recorded=sum(max(0, each.recorded - each.predicted) for each in groups),
        only_predicted=sum(max(0, each.predicted - each.recorded) for each in groups),
        small_recorded=sum(each.bytes < _SMALLEST for each in recorded.storages),
        small_predicted=sum(size < _SMALLEST for size, _ in made), groups=tuple(differing),
    )  # fmt: skip


def _groups(recorded: Recorded, made: Iterable[tuple[int, str]]) -> list[StorageGroup]:
    """The storages of each size from 1 MiB on, largest first."""
    seen: dict[int, list[tuple[str, ...]]] = {}
    for each in recorded.storages:
        seen.setdefault(each.bytes, []).append(each.frames)
    named: dict[int, list[str]] = {}
    for size, name in made:
        named.setdefault(size, []).append(name)
    sizes = sorted((size for size in {*seen, *named} if size >= _SMALLEST), reverse=True)
    return [
        StorageGroup(
            size,
            len(seen.get(size, ())),
            len(named.get(size, ())),
            next(iter(seen.get(size, ())), ()),
            tuple(dict.fromkeys(named.get(size, ()))),
        )
        for size in sizes
    ]
