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
# what the model scope tells beside them: of the worst stage, and sent in one optimizer step by mesh axis
MODEL_BYTES: Final = (
    *("state_bytes", "gradient_bytes", "optimizer_bytes", "standing_bytes", "kept_bytes", "working_bytes"),
)
AXES: Final = {"tp": "tp", "sp": "sp", "pp": "pp", "ep": "ep", "etp": "etp", "dp": "dp x sp", "expert_dp": "expert_dp"}
AXIS_BYTES: Final = tuple(f"wire_{name}_bytes" for name in AXES)
FLOPS: Final = ("flops_model", "flops_executed")
MODEL: Final = (*MODEL_BYTES, *AXIS_BYTES, "worst_stage", *FLOPS)
VERDICT: Final = ("status", "reason")
_STATES: Final = frozenset({"weights", "gradients", "optimizer states", "buffers"})
_ASKED: Final = ("scope", "profile", "model", "seq_len", "sp", "micro_batch", "layers", "dtype")
_DEGREES: Final = ("tp", "pp", "ep", "etp", "dp", "micro_batches", "virtual_stages", "sharding", "remat")
_REFUSED: Final = {"unsupported", "illegal"}


class Column(NamedTuple):
    """One column. names: what its small ints stand for; None where they are numbers. figure: refused rows have none."""

    name: str
    dtype: str
    names: tuple[str, ...] | None = None
    figure: bool = False


def plan_columns(scope: str) -> list[str]:
    """The columns of a plan's rows: the settings that say what was asked, then those of every sweep."""
    further = MODEL if scope == "model" else ()
    return [*_asked(scope), *NAMES, *BYTES, *further, *VERDICT]


def _asked(scope: str) -> tuple[str, ...]:
    return (*_ASKED, *_DEGREES) if scope == "model" else _ASKED


def plan_rows(plan: Plan) -> Iterator[dict[str, Any]]:
    """A plan's results as rows: numbers are ints, None where there is none."""
    asked = {name: plan.inputs[name] for name in _asked(plan.inputs["scope"])}
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
        **(_model_figures(result) if result.scope == "model" else {}),
        "status": status,
        "reason": verdict.reason if verdict is not None and status in _REFUSED else "",
    }


def _model_figures(result: Result) -> dict[str, Any]:
    """What the model scope tells beside the figures of every row; None where a row has no numbers."""
    memory, flops = result.memory, result.flops
    if not memory.stages or memory.allocated_peak_bytes is None:
        return dict.fromkeys(MODEL)
    worst = memory.stages[int(result.settings["stage"])]
    states = sum(part.bytes for part in memory.breakdown if part.name in _STATES)
    calls = result.communication.collectives
    return {
        "state_bytes": states,
        "gradient_bytes": worst.gradient_bytes,
        "optimizer_bytes": worst.optimizer_bytes,
        "standing_bytes": memory.allocated_peak_bytes - worst.kept_bytes - worst.working_bytes - states,
        "kept_bytes": worst.kept_bytes,
        "working_bytes": worst.working_bytes,
        **{f"wire_{name}_bytes": sum(c.wire_bytes for c in calls if c.axis == axis) for name, axis in AXES.items()},
        "worst_stage": worst.stage,
        "flops_model": (flops.forward.model or 0) + (flops.backward.model or 0),
        "flops_executed": (flops.forward.executed or 0) + (flops.backward.executed or 0),
    }
