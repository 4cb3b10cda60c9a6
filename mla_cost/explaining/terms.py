"""Where a number of a plan comes from, down to tensors: items that add up to it exactly."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Final

from mla_cost.declared.states import GRADIENTS, MASTER, MOMENTS, PARTIAL, WEIGHTS
from mla_cost.errors import InputError, nearest
from mla_cost.inputs.config import DeviceConfig, ModelConfig
from mla_cost.inputs.settings import PlanSettings
from mla_cost.language import live
from mla_cost.language.evaluate import Evaluation
from mla_cost.language.machine import DTYPE_BYTES, Allocation
from mla_cost.language.workspace import kinds_of
from mla_cost.pricing.automatic import with_kernel
from mla_cost.pricing.block import BlockFigures, figures
from mla_cost.pricing.evaluation import evaluation
from mla_cost.pricing.resolve import resolve
from mla_cost.pricing.stage import Segment
from mla_cost.pricing.stage_cost import StageCost
from mla_cost.pricing.stage_weights import RankWeights, WeightsAsked
from mla_cost.pricing.tensors import byte_formula
from mla_cost.pricing.whole_model import evaluated, reported, state_settings
from mla_cost.results import CollectiveCost, Result, Term, TermItem
from mla_cost.weights.held import Held
from mla_cost.weights.states import StateItem, StateSettings

MEANINGS: Final = {
    "saved": "kept between forward and backward",
    "peak": "alive at the peak: activations without weights and their gradients",
    "workspace": "held inside the kernel call at the allocated peak",
    "parameters": "weights",
    "gradients": "gradients of weights",
    "allocated": "the allocated peak: everything alive at its moment",
    "weights": "weights of the stage",
    "optimizer": "master weights and moments",
    "buffers": "fp32 elements that no optimizer updates",
    "states": "weights, gradients, optimizer and buffers",
    "standing": "buffers that the profile's implementation keeps for good",
    "kept": "activations of the micro-batches in flight but the one at work",
    "working": "activations of the micro-batch at work, at their peak",
    "sent": "bytes sent: forward and backward, at the model scope one optimizer step",
    "required": "what the verdict compares with what is usable",
    "usable": "visible memory less the reserve",
}
# the same terms where a stage has most alive inside the optimizer step, which runs behind the schedule
IN_STEP: Final = {
    "kept": "nothing: the peak event is in the optimizer step, when no micro-batch is in flight",
    "working": "gradients in fp32 that the optimizer step makes: the peak event is in it, and no micro-batch at work",
}
Items = Iterable[TermItem]


def explain(model: ModelConfig, device: DeviceConfig | None, settings: PlanSettings, row: Result, term: str) -> Term:
    """One number of a row, item by item; at the model scope of the stage that the row is about.

    Raises:
        InputError: no such term.

    """
    if row.memory.allocated_peak_bytes is None:
        raise InputError(f"{row.form} has no numbers: {row.verdict.reason if row.verdict else ''}")
    if settings.scope == "model":
        source: _Block | _Stage = _Stage(model, device, settings, row)
    else:
        source = _Block(model, device, settings, row)
    if term not in source.known:
        known = ", ".join(source.known)
        raise InputError(
            "no such term", field="--explain-term", value=term, allowed=known, nearest=nearest(term, source.known)
        )
    items = tuple(sorted((item for item in source.known[term]() if item.bytes), key=lambda item: -item.bytes))
    total = sum(item.bytes for item in items)
    return Term(
        term, source.meanings.get(term, MEANINGS[term]), row.device, row.form, row.kernel, source.stage, total, items
    )


def _common(row: Result) -> dict[str, Callable[[], Items]]:
    """What both scopes have; a verdict's terms where there is one."""
    found: dict[str, Callable[[], Items]] = {"sent": lambda: map(_collective, row.communication.collectives)}
    verdict = row.verdict
    if verdict is not None:
        taken = {"allocated peak", "other memory"}
        basis = [TermItem(item.source, item.name, "", item.bytes) for item in verdict.basis]
        found["required"] = lambda: (item for item in basis if item.name in taken)
        found["usable"] = lambda: (item for item in basis if item.name not in taken)
    return found


def _collective(cost: CollectiveCost) -> TermItem:
    where = f"{cost.phase}, {cost.axis} {cost.group_size}"
    formula = f"{cost.count} x {cost.wire_bytes // cost.count:,} B"
    return TermItem(where, f"{cost.kind} of {cost.tensor}", formula, cost.wire_bytes)


def _tensors(at: Evaluation, found: Iterable[Allocation], where: str, times: int = 1, words: str = "") -> Items:
    for allocation in found:
        formula = byte_formula(allocation)
        name = allocation.label
        yield TermItem(where, name, f"{words}{formula}", times * at.bytes_of(allocation.number))


# ---- one block, or several in a row


class _Block:
    """The terms of the attention scope."""

    stage: int | None = None
    meanings: Mapping[str, str] = MappingProxyType({})

    def __init__(self, model: ModelConfig, device: DeviceConfig | None, settings: PlanSettings, row: Result) -> None:
        self.family = device.family if device else "none"
        self.row = row
        chosen, _ = with_kernel(model, device, row.form, settings)
        self.it: BlockFigures = figures(resolve(model, row.form, chosen), self.family, settings.layers)
        self.at = self.it.at
        self.known: dict[str, Callable[[], Items]] = {
            "saved": self.saved,
            "peak": self.peak,
            "allocated": self.allocated,
            "parameters": self.parameters,
            "gradients": self.gradients,
            "workspace": self.workspace,
            **_common(row),
        }

    @property
    def times(self) -> str:
        return f"{self.it.layers} x " if self.it.layers > 1 else ""

    def of_every(self, found: Iterable[Allocation], where: str) -> Items:
        return _tensors(self.at, found, where, self.it.layers, self.times)

    def saved(self) -> Items:
        return self.of_every((a for a in self.at.account.timeline.allocations if a.saved), "saved")

    def parameters(self) -> Items:
        for held in self.at.account.timeline.parameters:
            amount = self.it.layers * held.size.at(self.at.values)
            yield TermItem("weights", held.label, f"{self.times}{byte_formula(held)}", amount)

    def gradients(self) -> Items:
        run = self.at.account.timeline
        return self.of_every((run.allocations[number] for number in self.at.account.gradients), "gradients of weights")

    def workspace(self) -> Items:
        return self._workspace(self.at, self.it.allocated.peak.event)

    def _workspace(self, at: Evaluation, event: int) -> Items:
        op = at.account.timeline.events[event].op
        yield TermItem("workspace", f"workspace of {op}", "inside the call", at.work_at(event, kinds_of(self.family)))

    def peak(self) -> Items:
        """The block that peaks, and what the others keep where several stand in a row."""
        it, event = self.it, self.it.seen.peak.event
        if it.peak_bytes == it.seen.peak.bytes:
            yield from _tensors(self.at, live.seen(self.at, event), "alive at the peak")
            return
        inner = evaluation(it.point._replace(key=it.point.key._replace(input_held=False)))
        yield from _tensors(inner, live.seen(inner, inner.walk().peak.event), "alive at the peak, last block")
        last = self.at.account.timeline.forward_events - 1
        kept = (a for a in live.seen(self.at, last) if a.number != 0)
        before = it.layers - 1
        yield from _tensors(self.at, kept, "kept by the blocks before", before, f"{before} x ")

    def allocated(self) -> Items:
        it, event = self.it, self.it.allocated.peak.event
        yield from self.parameters()
        yield from self.workspace()
        yield from _tensors(self.at, live.allocated(self.at, event), "alive at the peak")
        rest = it.allocated_peak_bytes - it.parameter_bytes - it.allocated.peak.bytes
        yield TermItem("other blocks", f"the other {it.layers - 1} blocks", "what they keep, and their gradients", rest)


# ---- a stage of the whole model


class _Stage:
    """The terms of the model scope, of one stage."""

    def __init__(self, model: ModelConfig, device: DeviceConfig | None, settings: PlanSettings, row: Result) -> None:
        chosen, _, costs = evaluated(model, device, row.form, settings)
        self.cost: StageCost = reported(costs, settings)
        self.stage: int | None = self.cost.stage
        self.family = device.family if device else "none"
        self.keeping: StateSettings = state_settings(chosen)
        self.meanings: Mapping[str, str] = {} if self._in_flight else IN_STEP
        self.rank_weights = tuple(
            RankWeights(model, WeightsAsked.of(row.form, chosen)).each(self.cost.chunks, chosen.pp)
        )
        self.known: dict[str, Callable[[], Items]] = {
            "weights": self.weights,
            "gradients": self.gradients,
            "optimizer": self.optimizer,
            "buffers": self.buffers,
            "states": self.states,
            "kept": self.saved_in_flight if self._in_flight else tuple,
            "saved": self.saved,
            "working": self.working if self._in_flight else self.step,
            "peak": self.activations,
            "standing": self.standing,
            "allocated": lambda: (*self.states(), *self.standing(), *self.beside()),
            **_common(row),
        }

    # states

    def states(self) -> Items:
        return (*self.weights(), *self.gradients(), *self.optimizer(), *self.buffers())

    def weights(self) -> Items:
        return self._state(WEIGHTS)

    def gradients(self) -> Items:
        return (*self._state(GRADIENTS, self.keeping.gradient_dtype), *self._state(PARTIAL))

    def optimizer(self) -> Items:
        return map(self._shard, [*self._items(MASTER), *self._items(MOMENTS)])

    def buffers(self) -> Items:
        held = (item for item in self.rank_weights if not item.trained)
        return self._weights("buffers", held)

    def _state(self, name: str, dtype: str | None = None) -> Items:
        """A state that a rank has of every weight, or its part of; dtype: the weights' own where None."""
        if name in self.keeping.row.split:
            return map(self._shard, self._items(name))
        return self._whole(name, dtype) if self._items(name) else ()

    def _items(self, name: str) -> list[StateItem]:
        return [item for item in self.cost.states.items if item.name == name]

    def _whole(self, name: str, dtype: str | None) -> Items:
        """Every weight of the stage, then the padding of the buffers that they lie in."""
        yield from self._weights(name, (item for item in self.rank_weights if item.trained), dtype)
        for item in self._items(name):
            yield TermItem(
                name, f"padding of the {item.holder} buffer", "to a multiple of the group", item.padding_bytes
            )

    @staticmethod
    def _weights(name: str, held: Iterable[Held], dtype: str | None = None) -> Items:
        """Equal weights of several layers in one line."""
        alike = Counter((_kind(item.part), item.name, item.elements, dtype or item.dtype) for item in held)
        for (part, weight, elements, width), count in alike.items():
            size = DTYPE_BYTES[width]
            formula = f"{count} x {elements:,} x {size} B" if count > 1 else f"{elements:,} x {size} B"
            yield TermItem(f"{name}, {part}", weight, formula, count * elements * size)

    def _shard(self, item: StateItem) -> TermItem:
        shared = f" / {item.ranks} ranks, padded" if item.ranks > 1 else ""
        return TermItem(
            "a shard" if shared else "whole",
            f"{item.name}, {item.holder}",
            f"{item.elements:,}{shared} x {item.size} B",
            item.bytes,
        )

    # buffers that a profile keeps, activations, and what the optimizer step makes

    @property
    def _in_flight(self) -> bool:
        """Whether the peak event is one of the schedule."""
        return self.cost.beside is self.cost.active

    def beside(self) -> Items:
        return self.activations() if self._in_flight else self.step()

    def activations(self) -> Items:
        return (*self.saved_in_flight(), *self.working())

    def step(self) -> Items:
        made = self.cost.states.step_bytes
        yield TermItem("inside the optimizer step", "gradients in fp32", "a copy of the shard", made)

    def standing(self) -> Items:
        return (TermItem("standing", part.name, part.basis, part.bytes) for part in self.cost.persistent)

    def saved(self) -> Items:
        """Of one micro-batch, in all chunks."""
        for chunk in self.cost.costs:
            yield from _kept(chunk.segments, 1)

    def saved_in_flight(self) -> Items:
        """Micro-batches in flight, chunk by chunk, less the one at work."""
        active = self.cost.active
        for index, (chunk, count) in enumerate(zip(self.cost.costs, active.in_flight, strict=True)):
            times = count - (index == active.chunk)
            if times:
                yield from _kept(chunk.segments, times)

    def working(self) -> Items:
        """What the layers before keep of this micro-batch, and the layer that peaks."""
        part = self.cost.active.part
        if part is None:
            return
        yield from _kept(self.cost.costs[self.cost.active.chunk].segments[: part.place], 1)
        at, event, where = part.segment.at, part.live.event, f"alive at the peak, {part.segment.name}"
        yield from _tensors(at, live.allocated(at, event, until_gathered=True), where)
        yield from (TermItem(where, name, "held beside", amount) for name, amount in part.held)
        op, work = at.account.timeline.events[event].op, at.work_at(event, kinds_of(self.family))
        yield TermItem(where, f"workspace of {op}", "inside the call", work)


def _kept(segments: Iterable[Segment], times: int) -> Iterator[TermItem]:
    """What layers keep of `times` micro-batches, equal layers in one line."""
    alike = Counter(segment.name for segment in segments)
    by_name = {segment.name: segment for segment in segments}
    for name, count in alike.items():
        at = by_name[name].at
        factors = [factor for factor in (times, count) if factor > 1]
        words = "".join(f"{factor} x " for factor in factors)
        saved = (a for a in at.account.timeline.allocations if a.saved)
        yield from _tensors(at, saved, f"kept, {count} {name}", times * count, words)


def _kind(part: str) -> str:
    """`layer 3` as `layers`: equal weights of layers are reported together."""
    return "layers" if part.startswith("layer ") else part
