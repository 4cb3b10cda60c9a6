"""Two timelines made comparable: the model's events with numbers put in, and what the executor recorded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import groupby, zip_longest
from typing import NamedTuple

from mla_cost.checks.reference.measure import Recording
from mla_cost.language.evaluate import Evaluation
from mla_cost.language.machine import Allocation

NEIGHBOURS = 3  # events shown before a difference


class TraceStep(NamedTuple):
    """One event: bytes allocated, or freed where negative; whether it is a parameter's gradient; what it is."""

    bytes: int
    of_parameter: bool
    text: str

    @property
    def figures(self) -> tuple[int, bool]:
        """What both sides must agree on."""
        return self.bytes, self.of_parameter

    def __str__(self) -> str:
        return f"{self.bytes:+,} ({self.text})"


class SavedStorage(NamedTuple):
    """A saved storage: the how-manieth allocation it is, its bytes, and what it is."""

    number: int
    bytes: int
    text: str

    def __str__(self) -> str:
        return f"{self.text}, {self.bytes:,} B, allocation {self.number}"


def _text(allocation: Allocation) -> str:
    return f"{allocation.label} [{' '.join(allocation.dims)}] {allocation.dtype}"


def model_steps(at: Evaluation) -> list[TraceStep]:
    """The model's timeline as a dispatcher would show it. A storage without bytes shows nowhere."""
    steps = []
    for event in at.account.timeline.events:
        if event.allocation is not None and (size := at.bytes_of(event.allocation.number)):
            sign = 1 if event.what == "alloc" else -1
            of_parameter = event.allocation.kind == "parameter_gradient"
            steps.append(TraceStep(sign * size, of_parameter, f"{event.phase}: {_text(event.allocation)}"))
    return settled(steps)


def executor_steps(recording: Recording) -> list[TraceStep]:
    """The executor's timeline."""
    return settled(
        TraceStep(
            event.signed_bytes,
            event.role == "parameter_gradient",
            f"{event.phase}: {recording.storages[event.storage]}",
        )
        for event in recording.events
    )


def settled(steps: Iterable[TraceStep]) -> list[TraceStep]:
    """Frees with no allocation between them, largest first: their order shows in no figure (docs/decisions/0002)."""
    runs = groupby(steps, key=lambda step: step.bytes < 0)
    return [step for freed, run in runs for step in (sorted(run, key=lambda step: step.figures) if freed else run)]


def first_difference(model: Sequence[TraceStep], executor: Sequence[TraceStep]) -> str:
    """The first event on which two timelines part, with what led there; empty where they are equal."""
    for at, (ours, theirs) in enumerate(zip_longest(model, executor)):
        if ours is None or theirs is None or ours.figures != theirs.figures:
            before = ", ".join(map(str, model[max(0, at - NEIGHBOURS) : at])) or "the start"
            return f"event {at}: model {ours or 'ends'}, executor {theirs or 'ends'}; before it {before}"
    return ""


def model_kept(at: Evaluation) -> list[SavedStorage]:
    """What the model keeps for backward."""
    shown = [allocation for allocation in at.account.timeline.allocations if at.bytes_of(allocation.number)]
    return [SavedStorage(n, at.bytes_of(a.number), _text(a)) for n, a in enumerate(shown) if a.saved]


def executor_kept(recording: Recording) -> list[SavedStorage]:
    """What the executor keeps for backward."""
    return sorted(SavedStorage(storage.serial, storage.bytes, str(storage)) for storage in recording.saved)


def kept_difference(model: Sequence[SavedStorage], executor: Sequence[SavedStorage]) -> str:
    """The storages that one side keeps and the other does not; empty where every storage has its like.

    Alike means as many bytes at the same place in the order of allocations. Where only places differ, places are
    reported.
    """
    ours, theirs = ({(kept.number, kept.bytes) for kept in side} for side in (model, executor))
    if ours == theirs:
        return ""
    only_ours, only_theirs = _without(model, executor), _without(executor, model)
    if not only_ours and not only_theirs:
        only_ours = [kept for kept in model if (kept.number, kept.bytes) not in theirs]
        only_theirs = [kept for kept in executor if (kept.number, kept.bytes) not in ours]
    return f"only the model keeps {_list(only_ours)}; only the executor keeps {_list(only_theirs)}"


def _without(side: Sequence[SavedStorage], other: Sequence[SavedStorage]) -> list[SavedStorage]:
    """The storages of a side whose sizes the other side lacks."""
    left = Counter(kept.bytes for kept in other)
    found = []
    for kept in side:
        if left[kept.bytes]:
            left[kept.bytes] -= 1
        else:
            found.append(kept)
    return found


def _list(kept: Sequence[SavedStorage]) -> str:
    return " and ".join(map(str, kept)) or "nothing"
