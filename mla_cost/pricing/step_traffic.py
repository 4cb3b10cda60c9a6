"""What one rank sends in one optimizer step, and its sums by mesh axis and phase.

Every rule holds for the numbers of one plan and for arrays of many, so a sweep sends what a plan sends.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from mla_cost.language.evaluate import Evaluation
from mla_cost.language.numbers import maximum, where
from mla_cost.pricing.resolve import layer_rows
from mla_cost.results import CollectiveCost, Communication, Traffic

if TYPE_CHECKING:
    from mla_cost.mesh.placement import Chunk
    from mla_cost.weights.sent import StepCollective

# what a sum over a phase holds: what is called again in backward is sent in backward
PHASES: Final = {"forward": ("forward",), "backward": ("backward", "recompute")}


class HasAmounts(Protocol):
    """Anything sent over a mesh axis in a phase. Bytes, numbers or arrays."""

    @property
    def axis(self) -> str: ...
    @property
    def phase(self) -> str: ...
    @property
    def payload_bytes(self) -> Any: ...
    @property
    def wire_bytes(self) -> Any: ...


class Sent(NamedTuple):
    """What is sent over an axis in a phase of one optimizer step. Bytes, numbers or arrays."""

    axis: str
    phase: str
    payload_bytes: Any
    wire_bytes: Any


# ---- what is sent


def collectives(at: Evaluation, times: int) -> Iterator[CollectiveCost]:
    """What a program sends when it runs so many times."""
    account, sizes, values = at.account, at.sizes, at.values
    for called, (payload, wire) in zip(account.timeline.collectives, account.payloads, strict=True):
        yield CollectiveCost(
            kind=called.kind,
            tensor=called.tensor,
            phase=called.phase,
            axis=called.axis,
            group_size=values[called.ranks],
            count=times,
            dtype=called.dtype,
            payload_bytes=times * sizes[payload],
            wire_bytes=times * sizes[wire],
            apart=values["A"] if called.ranks == "C" else 1,
        )


def passes(chunks: Sequence[Chunk]) -> tuple[int, int]:
    """Chunks of a stage whose output goes on, and whose input's gradient goes back."""
    return sum(not chunk.loss for chunk in chunks), sum(not chunk.embedding for chunk in chunks)


def hidden_states(settings: Any, hidden: int, element_bytes: Any) -> Any:
    """Bytes that one chunk hands to the next of another stage for one micro-batch; 0 without a pipeline.

    settings: its numbers, as those of element_bytes, may be arrays.
    """
    return element_bytes * layer_rows(settings) * hidden * (settings.pp > 1)


def between_stages(passed: Iterable[Any], times: Any, once: Any) -> Iterator[Sent]:
    """Hidden states to the next chunks and their gradients to those before. passed: as `passes`; once: bytes."""
    for phase, count in zip(PHASES, passed, strict=True):
        amount = times * count * once
        yield Sent("pp", phase, amount, amount)


def all_calls(called: StepCollective) -> Sent:
    """All calls of a collective of the optimizer step."""
    return Sent(called.axis, called.phase, called.calls * called.payload_bytes, called.calls * called.wire_bytes)


# ---- sums


class Totals:
    """Sums of what is sent. zero: what stands where nothing is."""

    def __init__(self, sent: Iterable[HasAmounts], zero: Any = 0) -> None:
        self._zero = zero
        self._cells: dict[tuple[str, str], tuple[Any, Any]] = {}
        for each in sent:
            payload, wire = self._cells.get((each.axis, each.phase), (0, 0))
            self._cells[each.axis, each.phase] = payload + each.payload_bytes, wire + each.wire_bytes

    @property
    def axes(self) -> tuple[str, ...]:
        """The axes over which anything is sent."""
        return tuple(dict.fromkeys(axis for axis, _ in self._cells))

    def payload(self, *, axis: str | None = None, phase: str | None = None) -> Any:
        """Bytes handed over, on one axis or all, in one of PHASES or in the whole step."""
        return self._sum(0, axis, phase)

    def wire(self, *, axis: str | None = None, phase: str | None = None) -> Any:
        """Bytes that the rank sends."""
        return self._sum(1, axis, phase)

    def of(self, phase: str) -> Traffic:
        """Both of one of PHASES."""
        return Traffic(self.payload(phase=phase), self.wire(phase=phase))

    def _sum(self, amount: int, axis: str | None, phase: str | None) -> Any:
        found = [
            amounts[amount]
            for (over, during), amounts in self._cells.items()
            if axis in {None, over} and (phase is None or during in PHASES[phase])
        ]
        return sum(found[1:], found[0]) if found else self._zero


def communication(calls: Iterable[CollectiveCost]) -> Communication:
    """What one rank sends, with its sums."""
    every = tuple(calls)
    sums = Totals(every)
    return Communication(sums.of("forward"), sums.of("backward"), every)


class Most(NamedTuple):
    """The most of all stages. Bytes and flops of one optimizer step.

    wire_bytes, by_axis: of the stage that sends most, the first of equal ones. executed: of that which runs most.
    """

    wire_bytes: Any
    by_axis: dict[str, Any]
    executed: Any


def maximum_over_stages(stages: Iterable[tuple[Totals, Any]], axes: Sequence[str]) -> Most:
    """The most of stages, each given as what it sends and the flops that it executes in one optimizer step."""
    each = iter(stages)
    sent, executed = next(each)
    most = Most(sent.wire(), {axis: sent.wire(axis=axis) for axis in axes}, executed)
    for sent, executed in each:
        wire = sent.wire()
        more = wire > most.wire_bytes
        by_axis = {axis: where(more, sent.wire(axis=axis), before) for axis, before in most.by_axis.items()}
        most = Most(where(more, wire, most.wire_bytes), by_axis, maximum(most.executed, executed))
    return most
