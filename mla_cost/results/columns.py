"""The columns of a sweep and of its rows, and the one row model that sweeps and plans share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple, Protocol

from mla_cost.results import Plan, Result, Stage, Time

OF_DEVICES: Final = ("usable_bytes", "headroom_bytes", "least_headroom_bytes")  # None without a device
NAMES: Final = ("form", "scheme", "kernel", "value_padding", "device")
AXES: Final = {"tp": "tp", "sp": "sp", "pp": "pp", "ep": "ep", "etp": "etp", "dp": "dp x sp", "expert_dp": "expert_dp"}
VERDICT: Final = ("status", "reason")
_ASKED: Final = ("scope", "profile", "model", "seq_len", "sp", "micro_batch", "layers", "dtype")
_DEGREES: Final = ("tp", "pp", "ep", "etp", "dp", "micro_batches", "virtual_stages", "sharding", "remat")
_REFUSED: Final = {"unsupported", "illegal"}


class Column(NamedTuple):
    """One column. names: what its small ints stand for; None where they are numbers. figure: refused rows have none."""

    name: str
    dtype: str
    names: tuple[str, ...] | None = None
    figure: bool = False


class Read(NamedTuple):
    """What a figure of one result is read from. other_memory: beside the model, in bytes."""

    result: Result
    other_memory: int

    @property
    def stage(self) -> Stage:
        """The stage that the row is about, at the model scope."""
        assert self.result.memory.stages is not None
        return self.result.memory.stages[int(self.result.settings["stage"])]

    @property
    def peak(self) -> int:
        """The allocated peak."""
        return self.result.memory.allocated_peak_bytes or 0

    @property
    def most_sent(self) -> int:
        """Bytes that the stage sends which sends most in an optimizer step."""
        return max(stage.sent_bytes for stage in self.result.memory.stages or ())

    @property
    def states(self) -> int:
        """Weights, gradients, optimizer and buffers."""
        return sum(part.bytes for part in self.result.memory.breakdown if part.name in _STATES)

    def wire(self, axis: str | None = None) -> int:
        """Bytes sent over an axis, or over all."""
        return sum(call.wire_bytes for call in self.result.communication.collectives if axis in {None, call.axis})


class Many(Protocol):
    """What a figure of many points is read from: an array each."""

    @property
    def worst(self) -> Any: ...  # of the stage that the rows are about: `batch.tile.Worst`
    @property
    def sent(self) -> Any: ...  # its `pricing.step_traffic.Totals`
    @property
    def flops(self) -> Any: ...  # model and executed
    @property
    def most(self) -> Any: ...  # of all stages: `pricing.step_traffic.Most`
    @property
    def stage(self) -> Any: ...  # its number
    @property
    def required(self) -> Any: ...
    @property
    def usable(self) -> Any: ...
    @property
    def headroom(self) -> Any: ...
    @property
    def least_headroom(self) -> Any: ...
    @property
    def times(self) -> Any: ...  # `batch.step_times.StepTimes`


class Figure(NamedTuple):
    """A column of numbers: how it is read from one result, and from many points of the model scope."""

    name: str
    of_result: Callable[[Read], float | None]
    of_many: Callable[[Many], Any]
    dtype: str = "int64"


def _traffic(phase: str, amount: str) -> Figure:
    """A sum over a phase."""
    return Figure(
        f"{phase}_{amount}_bytes",
        lambda at: getattr(getattr(at.result.communication, phase), f"{amount}_bytes"),
        lambda at: getattr(at.sent, amount)(phase=phase),
    )


def _wire(name: str, axis: str) -> Figure:
    """What is sent over an axis."""
    return Figure(f"wire_{name}_bytes", lambda at: at.wire(axis), lambda at: at.sent.wire(axis=axis))


def _flops(name: str, place: int) -> Figure:
    """Forward and backward together; place: among the fields of a count."""

    def of_result(at: Read) -> int:
        flops = at.result.flops
        return (flops.forward[place] or 0) + (flops.backward[place] or 0)

    return Figure(f"flops_{name}", of_result, lambda at: at.flops[place], "float64")


_STATES: Final = frozenset({"weights", "gradients", "optimizer states", "buffers"})
# what every scope tells; required is the allocated peak and other memory
EVERY_SCOPE: Final = (
    Figure("saved_bytes", lambda at: at.result.memory.saved_bytes, lambda at: at.worst.saved),
    Figure("peak_bytes", lambda at: at.result.memory.peak_bytes, lambda at: at.worst.active),
    Figure("allocated_peak_bytes", lambda at: at.peak, lambda at: at.worst.peak),
    Figure("parameter_bytes", lambda at: at.result.memory.parameter_bytes, lambda at: at.worst.weights),
    *(_traffic(phase, amount) for amount in ("payload", "wire") for phase in ("forward", "backward")),
    Figure("wire_bytes", lambda at: at.wire(), lambda at: at.sent.wire()),
    Figure("required_bytes", lambda at: at.peak + at.other_memory, lambda at: at.required),
    Figure("usable_bytes", lambda at: _verdict(at, "usable_bytes"), lambda at: at.usable),
    Figure("headroom_bytes", lambda at: _verdict(at, "headroom_bytes"), lambda at: at.headroom),
    Figure("least_headroom_bytes", lambda at: _verdict(at, "least_headroom_bytes"), lambda at: at.least_headroom),
)
# what the model scope tells beside them: of the worst stage, and sent in one optimizer step by mesh axis;
# the allocated peak is state + standing + kept + working. sent alone is that of the stage that sends most
MODEL_SCOPE: Final = (
    Figure("state_bytes", lambda at: at.states, lambda at: at.worst.states.sum(axis=0)),
    Figure("gradient_bytes", lambda at: at.stage.gradient_bytes, lambda at: at.worst.gradients),
    Figure("optimizer_bytes", lambda at: at.stage.optimizer_bytes, lambda at: at.worst.optimizer),
    Figure(
        "standing_bytes",
        lambda at: at.peak - at.stage.kept_bytes - at.stage.working_bytes - at.states,
        lambda at: at.worst.persistent,
    ),
    Figure("kept_bytes", lambda at: at.stage.kept_bytes, lambda at: at.worst.in_flight),
    Figure("working_bytes", lambda at: at.stage.working_bytes, lambda at: at.worst.working),
    *(_wire(name, axis) for name, axis in AXES.items()),
    Figure("sent_bytes", lambda at: at.most_sent, lambda at: at.most.wire_bytes),
    Figure("worst_stage", lambda at: at.stage.stage, lambda at: at.stage),
    _flops("model", 0),
    _flops("executed", 1),
)


def _time(name: str, of_time: Callable[[Time], float | None], of_many: str) -> Figure:
    """A figure of time; None where none is told."""

    def of_result(at: Read) -> float | None:
        return None if at.result.time is None else of_time(at.result.time)

    return Figure(name, of_result, lambda at: getattr(at.times, of_many), "float64")


# of an optimizer step, where somebody asks how long it takes and the device's file has ceilings
STEP_TIMES: Final = (
    _time("seconds", lambda time: time.total.seconds, "seconds"),
    _time("tokens_per_second", lambda time: time.tokens_per_second, "tokens_per_second"),
    _time("model_flops_utilisation", lambda time: time.model_flops_utilisation, "utilisation"),
    _time("idle_seconds", lambda time: time.idle, "idle"),
    _time("exposed_seconds", lambda time: sum(time.exposed.values()), "exposed"),
)
TIMES: Final = frozenset(figure.name for figure in STEP_TIMES)
BYTES: Final = tuple(figure.name for figure in EVERY_SCOPE)
MODEL: Final = tuple(figure.name for figure in MODEL_SCOPE)


def _verdict(at: Read, name: str) -> int | None:
    """A figure of the verdict; None without a device."""
    found: int | None = getattr(at.result.verdict, name) if at.result.verdict is not None else None
    return found


def figures(scope: str, *, timed: bool = False) -> tuple[Figure, ...]:
    """The figures that a scope tells. timed: with how long it takes."""
    if scope != "model":
        return EVERY_SCOPE
    return (*EVERY_SCOPE, *MODEL_SCOPE, *(STEP_TIMES if timed else ()))


def plan_columns(scope: str) -> list[str]:
    """The columns of a plan's rows: the settings that say what was asked, then those of every sweep."""
    return [*_asked(scope), *NAMES, *(figure.name for figure in figures(scope)), *VERDICT]


def _asked(scope: str) -> tuple[str, ...]:
    return (*_ASKED, *_DEGREES) if scope == "model" else _ASKED


def plan_rows(plan: Plan) -> Iterator[dict[str, Any]]:
    """A plan's results as rows: numbers are ints, None where there is none."""
    asked = {name: plan.inputs[name] for name in _asked(plan.inputs["scope"])}
    for result in plan.results:
        yield asked | result_row(result, int(plan.inputs["other_memory"]))


def result_row(result: Result, other_memory: int = 0, *, timed: bool = False) -> dict[str, Any]:
    """One result as a row; its figures are None where no program exists. A reason is reported for refusals."""
    verdict, read = result.verdict, Read(result, other_memory)
    legal = result.memory.allocated_peak_bytes is not None
    status = verdict.status if verdict is not None else "none"
    return {
        "form": result.form,
        "scheme": result.scheme,
        "kernel": result.kernel,
        "value_padding": result.settings.get("value_padding", "none") if legal else "none",
        "device": result.device or "none",
        **{figure.name: figure.of_result(read) if legal else None for figure in figures(result.scope, timed=timed)},
        "status": status,
        "reason": verdict.reason if verdict is not None and status in _REFUSED else "",
    }
