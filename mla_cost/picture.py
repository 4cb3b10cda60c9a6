"""What is alive at every moment of a block, with its largest tensors by name: the data of `plan --plot`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from mla_cost import live
from mla_cost.config import DeviceConfig, ModelConfig
from mla_cost.engine import Allocation
from mla_cost.evaluate import Evaluation
from mla_cost.figures import Figures, figures
from mla_cost.resolve import resolve
from mla_cost.results import Result
from mla_cost.settings import PlanSettings
from mla_cost.workspace import kinds_of

NAMED: Final = 8  # tensors with a layer of their own
SMALLEST: Final = 50  # none of them smaller than one part in 50 of the peak
AROUND: Final = 40  # events drawn on each side of the peak
REST: Final = "everything else"


class Layer(NamedTuple):
    """One tensor, or several together, over the events that are drawn. Bytes."""

    name: str
    bytes: tuple[int, ...]


class Picture(NamedTuple):
    """One block over time on one rank. ops: phase and op of each event; peak: its place among them; layers: bottom up.

    The sum of the layers at the peak is the allocated peak of the row.
    """

    form: str
    kernel: str
    device: str | None
    usable_bytes: int | None
    ops: tuple[str, ...]
    phases: tuple[str, ...]
    peak: int
    layers: tuple[Layer, ...]

    @property
    def totals(self) -> list[int]:
        """Bytes alive at each event."""
        return [sum(amounts) for amounts in zip(*(layer.bytes for layer in self.layers), strict=True)]


def picture(model: ModelConfig, device: DeviceConfig | None, settings: PlanSettings, row: Result) -> Picture:
    """The allocated bytes around the peak of a row of the attention scope."""
    family = device.family if device else "none"
    it = figures(resolve(model, row.form, settings), family, settings.layers)
    peak, run = it.allocated.peak.event, it.at.account.timeline
    shown = range(max(0, peak - AROUND), min(len(run.events), peak + AROUND + 1))
    return Picture(
        form=row.form,
        kernel=row.kernel,
        device=row.device,
        usable_bytes=row.verdict.usable_bytes if row.verdict else None,
        ops=tuple(run.events[event].op for event in shown),
        phases=tuple(run.events[event].phase for event in shown),
        peak=peak - shown.start,
        layers=tuple(_layers(it, family, shown)),
    )


def _layers(it: Figures, family: str, shown: range) -> Iterator[Layer]:
    at = it.at
    yield Layer("weights", (it.parameter_bytes,) * len(shown))
    others = it.allocated_peak_bytes - it.parameter_bytes - it.allocated.peak.bytes
    if others:
        yield Layer("the other blocks", (others,) * len(shown))
    alive = [list(live.allocated(at, event)) for event in shown]
    largest = _largest(at, {a.number: a for now in alive for a in now}.values(), it.allocated.peak.bytes)
    yield Layer(REST, tuple(_sum(at, (a for a in now if a not in largest)) for now in alive))
    for allocation in largest:
        yield Layer(allocation.label, tuple(at.bytes_of(allocation.number) * (allocation in now) for now in alive))
    work = tuple(at.work_at(event, kinds_of(family)) for event in shown)
    if any(work):
        yield Layer("kernel workspace", work)


def _largest(at: Evaluation, seen: Iterable[Allocation], peak: int) -> list[Allocation]:
    """The largest of the tensors that are seen, in the order in which they were made."""
    visible = (allocation for allocation in seen if at.bytes_of(allocation.number) * SMALLEST >= peak)
    found = sorted(visible, key=lambda allocation: -at.bytes_of(allocation.number))[:NAMED]
    return sorted(found, key=lambda allocation: allocation.made)


def _sum(at: Evaluation, found: Iterable[Allocation]) -> int:
    return sum(at.bytes_of(allocation.number) for allocation in found)
