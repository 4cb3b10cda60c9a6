"""Why the second lost to the first, in one line."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from mla_cost.studies.search.records import Candidate

WHAT: Final = (
    *("devices", "form", "scheme", "kernel", "tp", "sp", "pp", "ep", "etp", "dp", "virtual_stages"),
    *("micro_batch", "micro_batches", "sharding", "remat"),
)


class _Reported(NamedTuple):
    """How a sentence tells a figure: the field, the verb, the unit and what it is divided by."""

    field: str
    verb: str
    unit: str
    scale: float


_REPORTED: Final = {
    "devices": _Reported("devices", "takes", "devices", 1),
    "time": _Reported("seconds", "takes", "s a step", 1),
    "weight": _Reported("weight_seconds", "weighs", "s", 1),
    "required": _Reported("required_bytes", "needs", "GiB", 2**30),
    "sent": _Reported("sent_bytes", "sends", "GiB", 2**30),
    "flops": _Reported("flops", "runs", "Tflop", 10**12),
    "idle": _Reported("idle", "waits", "% of its schedule", 0.01),
}


def lost(best: Sequence[Candidate], order: Sequence[str]) -> str | None:
    """What the second of the ranked has more of than the first, by how much, and what it has less of in return."""
    if len(best) < 2:
        return None
    winner, second = best[:2]
    compared = [name for name in order if _value(winner, name) != _value(second, name)]
    if winner.status != second.status:
        why, others = f"is {second.status}, with {second.headroom_bytes / 2**30:,.2f} GiB left", compared
    else:
        why, others = _against(winner, second, compared[0]), compared[1:]
    rest = ", ".join(_difference(winner, second, name) for name in others)
    return f"the runner-up ({', '.join(_differing(winner, second))}) {why}{'; it ' if rest else ''}{rest}"


def _value(candidate: Candidate, name: str) -> float:
    found: float | None = getattr(candidate, _REPORTED[name].field)
    return 0.0 if found is None else found


def _against(winner: Candidate, second: Candidate, name: str) -> str:
    reported = _REPORTED[name]
    before, after = _value(winner, name), _value(second, name)
    share = f", {100 * (after - before) / before:.1f} % more" if before else ""
    return f"{reported.verb} {_number(after, reported)} {reported.unit} against {_number(before, reported)}{share}"


def _difference(winner: Candidate, second: Candidate, name: str) -> str:
    reported = _REPORTED[name]
    more = _value(second, name) - _value(winner, name)
    return f"{reported.verb} {_number(abs(more), reported)} {reported.unit} {'more' if more > 0 else 'less'}"


def _number(value: float, reported: _Reported) -> str:
    if reported.unit in {"s", "s a step"}:
        return f"{value:,.3f}" if value < 10 else f"{value:,.1f}"
    return f"{value:,}" if reported.scale == 1 else f"{value / reported.scale:,.2f}"


def _differing(winner: Candidate, second: Candidate) -> Iterator[str]:
    """The settings in which the second differs, as `tp 2`."""
    for name in WHAT:
        if getattr(winner, name) != getattr(second, name):
            yield f"{name} {getattr(second, name)}"
