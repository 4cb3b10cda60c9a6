"""A step, or a block, on a time line: what a rank of every stage does when, for a trace viewer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial

from mla_cost.errors import InputError
from mla_cost.inputs.config import DeviceConfig, ModelConfig
from mla_cost.inputs.settings import PlanSettings
from mla_cost.language.schedule import PassKind
from mla_cost.mesh.schedule import schedule_of, size_of
from mla_cost.pricing import times
from mla_cost.pricing.block import BlockFigures
from mla_cost.pricing.stage_work import communications
from mla_cost.pricing.whole_model import evaluated, parallel_of
from mla_cost.results import TraceSlice
from mla_cost.timing import step
from mla_cost.timing.ceilings import has_ceilings
from mla_cost.timing.work import Sending, limits, sending_seconds, work_of

MOST_PASSES = 20_000
DEVICE, LINKS = "device", "links"


def require_ceilings(device: DeviceConfig | None) -> DeviceConfig:
    """The device, where its time is known.

    Raises:
        InputError: none, or one whose file has no figures of time.

    """
    if device is None or not has_ceilings(device):
        raise InputError("a trace needs a device whose file has `time:`", field="device", value=device and device.name)
    return device


def block_trace(it: BlockFigures, device: DeviceConfig | None, settings: PlanSettings) -> list[TraceSlice]:
    """One block, call by call, forward then backward; what is made again stands where backward makes it."""
    how = times.pricing(require_ceilings(device), settings, "middle")
    account = work_of(it.at.account.timeline)
    calls = account.in_order()
    amounts = [amount.at(it.at.values) for amount in account.polynomials]
    found: list[TraceSlice] = []
    at = 0.0
    for call in calls:
        if isinstance(call, Sending):
            name, stream = f"{call.called.kind} of {call.called.tensor}", LINKS
            seconds = sending_seconds(call, amounts, how.on, it.at.values, how.by)
            told: Mapping[str, object] = {"axis": call.called.axis, "wire_bytes": amounts[call.wire]}
        else:
            needs = limits(call, amounts, how.on, how.causal)
            name, stream, seconds = f"{call.op} ({call.work})", DEVICE, needs.seconds
            told = {"bytes": amounts[call.bytes], "flops": None if call.flops is None else amounts[call.flops]}
        found.append(TraceSlice(0, stream, name, at, seconds, {"phase": call.phase, **told}))
        at += seconds
    return found


def step_trace(model: ModelConfig, device: DeviceConfig | None, form: str, settings: PlanSettings) -> list[TraceSlice]:
    """One optimizer step, pass by pass on every stage, then what keeps weights equal and the update.

    Raises:
        InputError: more passes than a viewer takes. Illegal: as `stage_costs`.

    """
    on = require_ceilings(device)
    chosen, _, costs = evaluated(model, on, form, settings)
    how = times.pricing(on, chosen, "middle", times.choice_of(model))
    whole = times.one_step(model, chosen, costs, communications(model, costs, chosen), how)
    parallel = parallel_of(chosen)
    size = size_of(parallel)
    if 2 * size.stages * size.chunks * size.num_micro_batches > MOST_PASSES:
        allowed = f"at most {MOST_PASSES // (2 * size.stages * size.chunks)} micro-batches here"
        raise InputError("more passes than a viewer takes", field="micro_batches", allowed=allowed)
    passes = step.runs(
        schedule_of(parallel), size, partial(times.duration, [stage.chunks for stage in whole.stages]), whole.hop
    )
    found = [each for run in (run for stage in passes for run in stage) for each in _pass(whole, run)]
    return [*found, *_tail(whole, step.length(passes))]


def _pass(whole: times.StepTime, run: step.Run) -> Iterator[TraceSlice]:
    """A pass, and inside it the classes of its work and what it waits for."""
    way = whole.stages[run.stage].chunks[run.step.chunk][run.step.kind is PassKind.BACKWARD]
    told = {"chunk": run.step.chunk, "micro_batch": run.step.micro_batch}
    name = f"{run.step.kind} {run.step.micro_batch}"
    yield TraceSlice(run.stage, DEVICE, name, run.start, run.end - run.start, told)
    at = run.start
    parts = [(times.NAMES[work], seconds) for work, seconds in way.device.items()]
    parts += [("waiting for the host", way.waits)]
    parts += [(f"exchanges over {axis}", seconds) for axis, seconds in way.exposed.items()]
    for part, seconds in parts:
        if seconds > 0:
            yield TraceSlice(run.stage, DEVICE, part, at, seconds, {"inside": name})
            at += seconds
    at = run.start
    for axis, seconds in way.links.items():
        told_links = {"hidden_us": 1e6 * way.hidden.get(axis, 0.0)}
        yield TraceSlice(run.stage, LINKS, f"exchanges over {axis}", at, seconds, told_links)
        at += seconds


def _tail(whole: times.StepTime, at: float) -> Iterator[TraceSlice]:
    parts = [(f"keeping weights equal over {axis}", LINKS, seconds) for axis, seconds in whole.reduction.items()]
    for stage in range(len(whole.stages)):
        start = at
        for name, stream, seconds in (*parts, ("optimizer", DEVICE, whole.optimizer)):
            if seconds > 0:
                yield TraceSlice(stage, stream, name, start, seconds, {})
                start += seconds
