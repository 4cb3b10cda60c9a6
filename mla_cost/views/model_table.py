"""The model scope as a table: forms on each device, then the stages and the states of the worst one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from mla_cost.inputs.table import names
from mla_cost.results import Plan, Result, Stage
from mla_cost.views.bars import MOST, stage_bars
from mla_cost.views.grid import TextGrid
from mla_cost.views.parts import (
    also_set,
    assumed,
    by_device,
    device_line,
    items,
    note_lines,
    other_memory,
    refused,
    reserve_line,
    verdict_text,
)
from mla_cost.views.times import step_times
from mla_cost.views.units import gib

COLUMNS = (
    "GiB on one rank of {}. states: weights, gradients, optimizer. kept: activations of the micro-batches "
    "in flight. working: {}. sent: wire bytes of one optimizer step, all axes{}."
)
WORKING = "the micro-batch at its peak"
IN_STEP = " (with none in flight, the fp32 gradients that the optimizer step makes)"
# settings that the heading tells whatever they are
TOLD = frozenset(names(heading=True))
STAGE = ("stage", "layers", "flight", "weights", "grads", "optim.", "kept", "working")  # buffers, total, sent
BUFFERS = ". buffers: what stays for the whole run"
LEFT_OUT = (
    "Not priced: allocator rounding, what the optimizer step makes beside gradients in fp32, library workspaces that "
    "are not listed."
)


def model_table(plan: Plan, *, every_stage: bool = False, notes: bool = True) -> RenderableType:
    """The whole answer. every_stage: a bar for each, however many there are. notes: with the small print."""
    parts: list[RenderableType] = [
        Text(_heading(plan)),
        *map(Text, assumed(plan.inputs)),
        *([Text(_columns(plan), style="dim")] if notes else []),
    ]
    for device, results in by_device(plan):
        parts += [Text(""), Text(device_line(plan, device, results), style="bold")]
        parts += [Text(reserve_line(results), style="dim"), _forms(results)]
        reported = [(r.form, r.verdict.reason) for r in results if r.verdict is not None and refused(r)]
        parts += [items(reported)] if reported else []
        priced = [result for result in results if result.memory.stages]
        parts += list(_stages(priced, plan.inputs["stage"], every_stage)) if priced else []
        times = list(step_times(priced))
        parts += [Text(""), *times] if times else []
    return Group(*parts, *([Text(""), *_small_print(plan)] if notes else []))


def _columns(plan: Plan) -> str:
    reported = [result.memory.stages[result.settings["stage"]] for result in plan.results if result.memory.stages]
    stages = [stage for result in plan.results for stage in result.memory.stages or ()]
    words = WORKING + (IN_STEP if not all(any(stage.in_flight) for stage in stages) else "")
    return COLUMNS.format(_which(plan), words + (BUFFERS if _with_buffers(reported) else ""), _sender(plan))


def _sender(plan: Plan) -> str:
    """Whose bytes the column `sent` tells, where there are several stages."""
    if plan.inputs["pp"] == 1:
        return ""
    return ", of the stage that sends most"


def _sent(result: Result) -> int:
    """Bytes of the stage that sends most, as a search has them: a step waits for that one."""
    return max(stage.sent_bytes for stage in result.memory.stages or ())


def _buffers(stage: Stage) -> int:
    """Bytes that are neither states nor activations, so that the columns add up to the total."""
    states = stage.weight_bytes + stage.gradient_bytes + stage.optimizer_bytes
    return stage.allocated_peak_bytes - states - stage.kept_bytes - stage.working_bytes


def _with_buffers(stages: Iterable[Stage]) -> bool:
    """Whether some stage's buffers are more than the 0.00 that a column would show."""
    return any(gib(_buffers(stage)) != gib(0) for stage in stages)


def _which(plan: Plan) -> str:
    stage = plan.inputs["stage"]
    return "the worst stage" if stage is None else f"stage {stage}"


def _heading(plan: Plan) -> str:
    inputs = plan.inputs
    world = inputs["pp"] * inputs["tp"] * inputs["sp"] * inputs["dp"]
    ranks = f"{world} ranks" if world > 1 else "1 rank"
    axes = ("tp", "sp", "pp", "ep", "dp") if inputs["etp"] == 1 else ("tp", "sp", "pp", "ep", "etp", "dp")
    degrees = ", ".join(f"{axis} {inputs[axis]}" for axis in axes)
    batch = f"micro-batch {inputs['micro_batch']} x {inputs['micro_batches']}"
    return (
        f"{inputs['model_title']}, the whole model: {inputs['seq_len']:,} tokens, {batch}, {inputs['dtype']}\n"
        f"{ranks}: {degrees}; optimizer {inputs['optimizer']}, sharding {inputs['sharding']}, "
        f"gradients {inputs['gradient_dtype']}, recomputation {inputs['remat']}"
        f"{other_memory(plan)}{also_set(inputs['changed'], TOLD)}"
    )


def _forms(results: Sequence[Result]) -> TextGrid:
    reported = [result.memory.stages[result.settings["stage"]] for result in results if result.memory.stages]
    buffers = _with_buffers(reported)
    names = ("form", "states", "kept", "working", *["buffers"] * buffers, "total", "sent", "verdict")
    table = TextGrid(names, left=("form", "verdict"))
    for result in results:
        table.add(result.form, *_figures(result, buffers), verdict_text(result))
    return table


def _figures(result: Result, buffers: bool) -> list[str]:
    memory = result.memory
    if not memory.stages:
        return ["-"] * (5 + buffers)
    reported = memory.stages[result.settings["stage"]]
    states = reported.weight_bytes + reported.gradient_bytes + reported.optimizer_bytes
    parts = [states, reported.kept_bytes, reported.working_bytes, *[_buffers(reported)] * buffers]
    return [*map(gib, parts), gib(reported.allocated_peak_bytes), gib(_sent(result))]


def _worst(stages: Iterable[Stage]) -> Stage:
    return max(stages, key=lambda stage: stage.allocated_peak_bytes)


def _stages(results: list[Result], asked: int | None, every_stage: bool) -> Iterator[RenderableType]:
    """Every stage under the form that needs least, since stages differ alike under all of them. asked: by --stage."""
    least = min(results, key=lambda result: result.memory.allocated_peak_bytes or 0)
    stages = least.memory.stages or ()
    yield Text("")
    yield Text(f"Stages under {least.form}, kernel {least.kernel}")
    buffers = _with_buffers(stages)
    table = TextGrid((*STAGE, *["buffers"] * buffers, "total", "sent"))
    for stage in _shown(stages, asked):
        table.add(*_stage(stage, buffers))
    yield table
    yield Text("")
    yield from stage_bars(least, stages if len(stages) <= MOST or every_stage else _shown(stages, asked))
    yield Text("")
    yield Text(f"Peak event: {_worst(stages).moment} on stage {_worst(stages).stage}")
    if asked not in {None, _worst(stages).stage}:
        yield Text(f"Peak event of stage {asked}: {stages[asked or 0].moment}")


def _shown(stages: tuple[Stage, ...], asked: int | None) -> list[Stage]:
    """The first, the last, the worst and the one asked for where there are many."""
    if len(stages) <= 8:
        return list(stages)
    wanted = {0, 1, len(stages) - 1, _worst(stages).stage, asked}
    return [stage for stage in stages if stage.stage in wanted]


def _stage(stage: Stage, buffers: bool) -> list[str]:
    ends = "E" * stage.embedding + f"{stage.layers}" + "m" * stage.mtp_modules + "L" * stage.loss
    flight = "+".join(str(count) for count in stage.in_flight)
    amounts = (
        stage.weight_bytes,
        stage.gradient_bytes,
        stage.optimizer_bytes,
        stage.kept_bytes,
        stage.working_bytes,
        *[_buffers(stage)] * buffers,
        stage.allocated_peak_bytes,
        stage.sent_bytes,
    )
    return [str(stage.stage), ends, flight, *map(gib, amounts)]


def _small_print(plan: Plan) -> Iterator[RenderableType]:
    for line in note_lines(plan):
        yield Text(line, style="dim")
    yield Text(LEFT_OUT, style="dim")
