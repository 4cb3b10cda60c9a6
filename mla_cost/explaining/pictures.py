"""What is alive around the peak, with the largest tensors by name: the data of `plan --plot`.

At the attention scope it is the block; at the model scope the layer that peaks on the stage that is selected, on top of
states, of other micro-batches and of the layers before it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from mla_cost.inputs.config import DeviceConfig, ModelConfig
from mla_cost.inputs.settings import PlanSettings
from mla_cost.language import live
from mla_cost.language.evaluate import Evaluation
from mla_cost.language.machine import Allocation
from mla_cost.language.workspace import kinds_of
from mla_cost.pricing.automatic import with_kernel
from mla_cost.pricing.block import BlockFigures, figures
from mla_cost.pricing.resolve import resolve
from mla_cost.results import Result

NAMED: Final = 8  # tensors with a layer of their own
SMALLEST: Final = 50  # none of them smaller than one part in 50 of the peak
AROUND: Final = 40  # events drawn on each side of the peak
REST: Final = "everything else"
STATES: Final = "weights, gradients, optimizer"
IN_FLIGHT: Final = "other micro-batches"
BEFORE: Final = "kept by the layers before"


class Band(NamedTuple):
    """One tensor, or several together, over the events that are drawn. Bytes."""

    name: str
    bytes: tuple[int, ...]


class Picture(NamedTuple):
    """Live bytes over time on one rank. ops: phase and op of each event; peak: its place among them; layers: bottom up.

    what: the part of the model that runs. The sum of the layers at the peak is the allocated peak of the row.
    """

    what: str
    form: str
    kernel: str
    device: str | None
    usable_bytes: int | None
    ops: tuple[str, ...]
    phases: tuple[str, ...]
    peak: int
    layers: tuple[Band, ...]

    @property
    def totals(self) -> list[int]:
        """Bytes alive at each event."""
        return [sum(amounts) for amounts in zip(*(layer.bytes for layer in self.layers), strict=True)]


def picture(model: ModelConfig, device: DeviceConfig | None, settings: PlanSettings, row: Result) -> Picture | None:
    """The allocated bytes around the peak of a row; None where a stage peaks when nothing of a layer is alive."""
    family = device.family if device else "none"
    if settings.scope == "model":
        return _of_stage(model, device, settings, row, family)
    chosen, _ = with_kernel(model, device, row.form, settings)
    it = figures(resolve(model, row.form, chosen), family, settings.layers)
    peak = it.allocated.peak.event
    shown = _around(it.at, peak)
    return _picture("block", row, it.at, peak, shown, tuple(_layers(it, family, shown)))


def _of_stage(
    model: ModelConfig, device: DeviceConfig | None, settings: PlanSettings, row: Result, family: str
) -> Picture | None:
    from mla_cost.pricing import whole_model

    _, _, costs = whole_model.evaluated(model, device, row.form, settings)
    cost = whole_model.reported(costs, settings)
    part = cost.active.part
    if part is None or cost.beside is not cost.active:
        return None
    at, peak = part.segment.at, part.live.event
    shown = _around(at, peak)
    before = part.before + sum(amount for _, amount in part.held)
    below = [
        (STATES, cost.states.total),
        ("buffers that stand", sum(each.bytes for each in cost.persistent)),
        (IN_FLIGHT, cost.active.saved_in_flight),
        (BEFORE, before),
    ]
    layers = [Band(name, (amount,) * len(shown)) for name, amount in below if amount]
    layers += _tensors(at, family, shown, part.bytes, until_gathered=True)
    what = f"stage {cost.stage}, layer {part.segment.name}"
    return _picture(what, row, at, peak, shown, tuple(layers))


def _around(at: Evaluation, peak: int) -> range:
    events = at.account.timeline.events
    return range(max(0, peak - AROUND), min(len(events), peak + AROUND + 1))


def _picture(what: str, row: Result, at: Evaluation, peak: int, shown: range, layers: tuple[Band, ...]) -> Picture:
    run = at.account.timeline
    return Picture(
        what=what,
        form=row.form,
        kernel=row.kernel,
        device=row.device,
        usable_bytes=row.verdict.usable_bytes if row.verdict else None,
        ops=tuple(run.events[event].op for event in shown),
        phases=tuple(run.events[event].phase for event in shown),
        peak=peak - shown.start,
        layers=layers,
    )


def _layers(it: BlockFigures, family: str, shown: range) -> Iterator[Band]:
    at = it.at
    yield Band("weights", (it.parameter_bytes,) * len(shown))
    others = it.allocated_peak_bytes - it.parameter_bytes - it.allocated.peak.bytes
    if others:
        yield Band("the other blocks", (others,) * len(shown))
    yield from _tensors(at, family, shown, it.allocated.peak.bytes)


def _tensors(at: Evaluation, family: str, shown: range, peak: int, *, until_gathered: bool = False) -> Iterator[Band]:
    """The largest tensors by name, the others together, and kernel workspace."""
    alive = [list(live.allocated(at, event, until_gathered=until_gathered)) for event in shown]
    largest = _largest(at, {a.number: a for now in alive for a in now}.values(), peak)
    yield Band(REST, tuple(_sum(at, (a for a in now if a not in largest)) for now in alive))
    for allocation, name in zip(largest, unique_names(largest), strict=True):
        yield Band(name, tuple(at.bytes_of(allocation.number) * (allocation in now) for now in alive))
    work = tuple(at.work_at(event, kinds_of(family)) for event in shown)
    if any(work):
        yield Band("kernel workspace", work)


def unique_names(found: Sequence[Allocation]) -> list[str]:
    """A name for each, none twice: its label, and of those that share one the op and the module that made it."""
    names = [allocation.label for allocation in found]
    for more in (lambda a: " in ".join(reversed(a.place)), lambda a: a.phase):
        several = {name for name, count in Counter(names).items() if count > 1}
        names = [f"{name} ({more(a)})" if name in several else name for name, a in zip(names, found, strict=True)]
    totals, seen = Counter(names), Counter[str]()
    for at, name in enumerate(names):
        seen[name] += 1
        names[at] = f"{name}, {ordinal(seen[name])}" if totals[name] > 1 else name
    return names


def ordinal(number: int) -> str:
    """1st, 2nd, 3rd, 4th: of few."""
    return f"{number}{({1: 'st', 2: 'nd', 3: 'rd'}).get(number, 'th')}"


def _largest(at: Evaluation, seen: Iterable[Allocation], peak: int) -> list[Allocation]:
    """The largest of the tensors that are seen, in the order in which they were made."""
    visible = (allocation for allocation in seen if at.bytes_of(allocation.number) * SMALLEST >= peak)
    found = sorted(visible, key=lambda allocation: -at.bytes_of(allocation.number))[:NAMED]
    return sorted(found, key=lambda allocation: allocation.made)


def _sum(at: Evaluation, found: Iterable[Allocation]) -> int:
    return sum(at.bytes_of(allocation.number) for allocation in found)
