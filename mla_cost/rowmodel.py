"""The columns of a sweep and of its rows, and the one row model that sweeps and plans share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from mla_cost.results import Plan, Result

NAMES: Final = ("form", "scheme", "kernel", "device")
BYTES: Final = (
    "saved_bytes",
    "peak_bytes",
    "allocated_peak_bytes",
    "parameter_bytes",
    "forward_payload_bytes",
    "backward_payload_bytes",
    "forward_wire_bytes",
    "backward_wire_bytes",
    "wire_bytes",
    "required_bytes",
    "usable_bytes",
    "headroom_bytes",
)
VERDICT: Final = ("status", "reason")
_REFUSED: Final = {"unsupported", "illegal"}


class Column(NamedTuple):
    """One column. names: what its small ints stand for; None where they are numbers."""

    name: str
    dtype: str
    names: tuple[str, ...] | None = None


def plan_columns() -> list[str]:
    """The columns of a plan's rows: the settings that say what was asked, then those of every sweep."""
    return ["model", "seq_len", "sp", "micro_batch", "layers", "dtype", *NAMES, *BYTES, *VERDICT]


def plan_rows(plan: Plan) -> Iterator[dict[str, Any]]:
    """A plan's results as rows: numbers are ints, None where there is none."""
    asked = {name: plan.inputs[name] for name in ("model", "seq_len", "sp", "micro_batch", "layers", "dtype")}
    for result in plan.results:
        yield asked | result_row(result, int(plan.inputs["other_memory"]))


def result_row(result: Result, other_memory: int = 0) -> dict[str, Any]:
    """One result as a row. A reason is told for refusals."""
    memory, traffic, verdict = result.memory, result.communication, result.verdict
    sent = (traffic.forward.wire_bytes, traffic.backward.wire_bytes)
    allocated = memory.allocated_peak_bytes
    status = verdict.status if verdict is not None else "none"
    return {
        "form": result.form,
        "scheme": result.scheme,
        "kernel": result.kernel,
        "device": result.device or "none",
        "saved_bytes": memory.saved_bytes,
        "peak_bytes": memory.peak_bytes,
        "allocated_peak_bytes": allocated,
        "parameter_bytes": memory.parameter_bytes,
        "forward_payload_bytes": traffic.forward.payload_bytes,
        "backward_payload_bytes": traffic.backward.payload_bytes,
        "forward_wire_bytes": sent[0],
        "backward_wire_bytes": sent[1],
        "wire_bytes": None if sent[0] is None else sum(call.wire_bytes for call in traffic.collectives),
        "required_bytes": None if allocated is None else allocated + other_memory,
        "usable_bytes": verdict.usable_bytes if verdict is not None else None,
        "headroom_bytes": verdict.headroom_bytes if verdict is not None else None,
        "status": status,
        "reason": verdict.reason if verdict is not None and status in _REFUSED else "",
    }
