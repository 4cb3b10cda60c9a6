"""The rows of a plan: one result per form, for the worst stage of a model or for the one that blocks alone are."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from mla_cost.declared import defaults
from mla_cost.declared.forms import FORMS
from mla_cost.declared.profiles import PROFILES
from mla_cost.inputs.config import DeviceConfig, ModelConfig
from mla_cost.inputs.settings import PlanSettings
from mla_cost.language.evaluate import EXACT_LIMIT, ExactLimitError
from mla_cost.language.workspace import kinds_of
from mla_cost.mesh.schedule import schedule_of
from mla_cost.pricing import automatic, verdicts
from mla_cost.pricing import notes as ignored
from mla_cost.pricing.block import BlockFigures
from mla_cost.pricing.compare import compare, sends_more_than_baseline
from mla_cost.pricing.evaluation import too_large
from mla_cost.pricing.host import host_memory, told
from mla_cost.pricing.key import Key
from mla_cost.pricing.links import with_links
from mla_cost.pricing.model_notes import model_notes
from mla_cost.pricing.notes import why_no_layout
from mla_cost.pricing.resolve import IMPLEMENTATION, Illegal, Point
from mla_cost.pricing.stage import StageActivations
from mla_cost.pricing.stage_cost import StageCost
from mla_cost.pricing.stage_work import communications, stage_flops
from mla_cost.pricing.step_traffic import Totals
from mla_cost.pricing.tensors import in_detail
from mla_cost.pricing.times import block_time, step_time
from mla_cost.pricing.whole_model import evaluated, parallel_of, reported, verdict, worst_of
from mla_cost.results import (
    Beside,
    Breakdown,
    Communication,
    Flops,
    FusedOption,
    Memory,
    PeakEvent,
    Result,
    Stage,
    Time,
    Verdict,
)

_RESOLVED = ("v_layout", "value_padding", "attention_layout", "softmax_dtype", "mask", "names")
_OF_BLOCKS = ("remat", "causal", "layers", "idle_mlp")
_OF_MODELS = ("remat", "causal", "tp", "pp", "ep", "etp", "dp", "sharding", "optimizer", "cross_entropy")


class Priced(NamedTuple):
    """A form evaluated: the settings with the kernel that runs, why that one, every stage and what each sends.

    worst: the stage that the row is about. point: the last program of its first chunk.
    """

    settings: PlanSettings
    why: tuple[str, ...]
    costs: Sequence[StageCost]
    traffic: Sequence[Communication]
    worst: StageCost
    point: Point

    def block(self, device: DeviceConfig | None) -> BlockFigures:
        """The row of blocks that the one stage is."""
        return BlockFigures(self.worst, kinds_of(device.family if device else "none"))


def rows(
    model: ModelConfig, device: DeviceConfig | None, settings: PlanSettings, *, timed: bool = True
) -> list[Result]:
    """One result per form asked for. An impossible combination is a row too: `illegal`, its numbers None.

    timed: whether anybody reads how long it takes, which costs as much as all else.
    """
    priced = {form: _try(model, device, form, settings) for form in settings.form}
    baseline = _baseline(model, device, settings, priced) if settings.scope == "attention" else None
    return [
        it if isinstance(it, Result) else _row(model, device, settings, it, form, baseline, timed=timed)
        for form, it in priced.items()
    ]


def _try(model: ModelConfig, device: DeviceConfig | None, form: str, settings: PlanSettings) -> Priced | Result:
    """A form priced, or its row where it makes no program."""
    try:
        chosen, why, costs = evaluated(model, device, form, settings)
        worst, traffic = reported(costs, settings), communications(model, costs, chosen)
        if settings.scope == "model":
            _require_exact(worst, traffic)
        return Priced(chosen, why, costs, traffic, worst, worst.costs[0].segments[-1].point)
    except Illegal as error:
        own = settings
        if settings.scope == "attention":
            own, _ = automatic.with_kernel(model, device, form, settings)
        return illegal(device, form, own, str(error))


def _baseline(
    model: ModelConfig, device: DeviceConfig | None, settings: PlanSettings, priced: dict[str, Priced | Result]
) -> BlockFigures | None:
    """What every form is compared with: the baseline form under its own scheme, if these settings allow it."""
    found = priced.get(defaults.BASELINE) if settings.scheme is None else None
    if found is None:
        found = _try(model, device, defaults.BASELINE, settings.model_copy(update={"scheme": None}))
    return found.block(device) if isinstance(found, Priced) else None


def illegal(device: DeviceConfig | None, form: str, settings: PlanSettings, reason: str) -> Result:
    """The row of a combination that makes no program."""
    return Result(
        device=device.name if device else None,
        scope=settings.scope,
        form=form,
        scheme=settings.scheme or FORMS[form].scheme,
        kernel=settings.kernel,
        profile=settings.profile,
        settings={field: getattr(settings, field) for field in (*_RESOLVED, *_OF_BLOCKS)},
        key="",
        memory=Memory(),
        communication=Communication(),
        flops=Flops(),
        compared_to_explicit=(),
        verdict=Verdict("illegal", None, None, None, reason),
    )


def _row(
    model: ModelConfig,
    device: DeviceConfig | None,
    settings: PlanSettings,
    it: Priced,
    form: str,
    baseline: BlockFigures | None,
    *,
    timed: bool,
) -> Result:
    """The row of a form that is priced. settings: as they were asked for."""
    alone = settings.scope == "attention"
    point, worst, time_of = it.point, it.worst, _time_of(model, device, it)
    time = time_of(it.settings) if timed else None
    notes = _notes_of_block(it, device) if alone else _notes(model, device, settings, it)
    found = Result(
        device=device.name if device else None,
        scope=settings.scope,
        form=form,
        scheme=point.scheme.name,
        kernel=point.kernel.name,
        profile=settings.profile,
        settings=_settings_of_block(it.settings, point) if alone else _settings(it.settings, point.key, worst.stage),
        key=point.key.predicates.words(),
        memory=_memory(it.costs, worst, it.traffic),
        communication=with_links(it.traffic[worst.stage], device, it.settings),
        flops=stage_flops(worst, it.settings),
        compared_to_explicit=(),
        verdict=_reported_verdict(model, device, it) if device else None,
        notes=(*it.why, *notes, *(ignored.of_times(it.settings, time, time_of) if timed else ())),
        time=time,
        host=None if alone else host_memory(device, it.settings, it.costs),
    )
    return _in_detail(model, device, it, found, baseline) if alone else found


def _in_detail(
    model: ModelConfig, device: DeviceConfig | None, it: Priced, row: Result, baseline: BlockFigures | None
) -> Result:
    """The row of blocks with what one of them is made of, beside the baseline form, op by op and other kernels."""
    block, settings = it.block(device), it.settings
    row = row._replace(
        memory=in_detail(row.memory, block),
        compared_to_explicit=compare(block, baseline) if baseline is not None else (),
        beside=_beside(model, device, settings, row) if it.why else None,
    )
    found = row.verdict
    if device is None or found is None:
        return row
    options = verdicts.fused_options(model, device, row.form, settings)
    if found.status == "oom":
        way_out = _fused_way_out(model, device, row.form, settings, options)
        row = row._replace(notes=(*[way_out] * bool(way_out), *row.notes))
    return row._replace(verdict=found._replace(fused_kernels=options))


def _time_of(model: ModelConfig, device: DeviceConfig | None, it: Priced) -> Callable[[PlanSettings], Time | None]:
    """How long blocks, or an optimizer step, take under some settings."""
    if it.settings.scope == "attention":
        return lambda asked: block_time(it.block(device), device, asked)
    return lambda asked: step_time(model, device, asked, it.costs, it.traffic, _model_flops(it.costs, asked))


def _beside(model: ModelConfig, device: DeviceConfig | None, settings: PlanSettings, row: Result) -> Beside | None:
    """The same block op by op, beside a row whose fused kernel was chosen; None where it makes no program."""
    if device is None or row.kernel == automatic.EAGER:
        return None
    it = _try(model, device, row.form, settings.model_copy(update={"kernel": automatic.EAGER}))
    if isinstance(it, Result):
        return None
    found = _verdict(model, device, it, it.worst)
    peaks = it.worst.saved_bytes, it.worst.seen.bytes, it.worst.peak
    return Beside(automatic.EAGER, *peaks, found.status, found.reason)


def _fused_way_out(
    model: ModelConfig, device: DeviceConfig, form: str, settings: PlanSettings, options: Sequence[FusedOption]
) -> str:
    """For a plan that does not fit: the first fused kernel under which it does, in words; empty where none is."""
    for option in options:
        asked = settings.model_copy(update={"kernel": option.kernel, "value_padding": option.value_padding})
        it = _try(model, device, form, asked)
        if isinstance(it, Result):
            continue
        found = _verdict(model, device, it, it.worst)
        if found.status in {"fits", "tight"}:
            return f"on {device.name} with --kernel {option.kernel}: {found.reason}"
    return ""


def _notes(model: ModelConfig, device: DeviceConfig | None, settings: PlanSettings, it: Priced) -> Iterator[str]:
    """What the reader of a stage's row has to know beside."""
    yield from PROFILES[settings.profile].notes
    yield from model_notes(model, settings, it.costs)
    beside = host_memory(device, it.settings, it.costs)
    if beside is not None:
        yield told(beside)
    yield from ignored.notes(model, settings, it.point, device=device is not None)


def _notes_of_block(it: Priced, device: DeviceConfig | None) -> Iterator[str]:
    """The same of blocks alone."""
    if not it.point.v_layout_matters:
        yield f"v_layout: no effect ({why_no_layout(it.point)})"
    yield from it.point.scheme.notes
    if sends_more_than_baseline(it.block(device)):
        yield f"at this number of heads per rank it sends more bytes than {defaults.BASELINE}"
    yield from ignored.block_notes(it.settings, it.point, device=device is not None)


# ---- numbers of the row


def _model_flops(costs: Sequence[StageCost], settings: PlanSettings) -> int:
    """Of all ranks in one optimizer step, as the numerator of model flops utilisation counts them."""
    alike = {id(cost.costs): cost for cost in costs}
    each = {key: stage_flops(cost, settings) for key, cost in alike.items()}
    of_stages = (each[id(cost.costs)] for cost in costs)
    ranks = settings.tp * settings.sp * settings.dp
    return sum((it.forward.model or 0) + (it.backward.model or 0) for it in of_stages) * ranks


def _require_exact(worst: StageCost, traffic: Sequence[Communication]) -> None:
    """Refuse sums that not every evaluator would give exactly; every part of them is below the limit already.

    Raises:
        Illegal: the peak, or the payload bytes of one optimizer step, or what any stage sends in one, reach 2^53.

    """
    every, most = Totals(traffic[worst.stage].collectives), max(Totals(sent.collectives).wire() for sent in traffic)
    for what, amount in (
        ("the worst stage holds", worst.peak),
        ("a rank sends in one step", max(every.payload(), most)),
    ):
        if amount >= EXACT_LIMIT:
            raise too_large(ExactLimitError(f"{what} {amount} bytes"))


def _verdict(model: ModelConfig, device: DeviceConfig, it: Priced, cost: StageCost) -> Verdict:
    """What a device says to a stage."""
    asked = it.settings if cost is it.worst else it.settings.model_copy(update={"stage": cost.stage})
    return verdict(model, device, asked, it.point, cost.peak, cost.allowed)


def _reported_verdict(model: ModelConfig, device: DeviceConfig, it: Priced) -> Verdict:
    """That of the stage which a row is about, with what its reader has to know beside it."""
    found, worst = _verdict(model, device, it, it.worst), worst_of(it.costs)
    if found.status in {"fits", "tight"} and worst.peak > it.worst.peak:
        other = _verdict(model, device, it, worst)
        if other.status == "oom":
            found = found._replace(reason=f"{found.reason}; the plan does not fit: {other.reason}")
    if it.settings.scope == "attention":
        return found
    return verdicts.with_first_line(model, device, it.settings, it.point.form, found)


def _settings_of_block(settings: PlanSettings, point: Point) -> dict[str, Any]:
    matters = "as set" if point.v_layout_matters else f"no effect: {why_no_layout(point)}"
    resolved = {field: getattr(point.key, field) for field in (*_RESOLVED, "norm")}
    resolved = {"v_layout": resolved.pop("v_layout"), "v_layout_effect": matters, **resolved}
    return {**resolved, **{field: getattr(settings, field) for field in _OF_BLOCKS}}


def _settings(settings: PlanSettings, key: Key, stage: int) -> dict[str, Any]:
    fixed = PROFILES[key.profile].fixed
    priced = ("value_padding", "v_layout", "attention_layout", "softmax_dtype", "mask", "norm", "names", "moe_style")
    own = IMPLEMENTATION if PROFILES[key.profile].texts else ()
    found = {field: getattr(key if field in fixed else settings, field) for field in priced}
    found["value_padding"] = key.value_padding
    found["schedule"] = schedule_of(parallel_of(settings)).name
    return {**found, **{field: getattr(settings, field) for field in (*_OF_MODELS, *own)}, "stage": stage}


def _memory(costs: Sequence[StageCost], worst: StageCost, traffic: Sequence[Communication]) -> Memory:
    held = worst.states
    return Memory(
        saved_bytes=worst.saved_bytes,
        peak_bytes=worst.seen.bytes,
        parameter_bytes=held.weight_bytes,
        parameter_gradient_bytes=held.gradient_bytes,
        parameter_gradient_total_bytes=worst.gradient_bytes,
        optimizer_bytes=held.optimizer_bytes,
        kernel_workspace_bytes=None,
        allocated_peak_bytes=worst.peak,
        peak_moment=_peak_event(worst.seen),
        allocated_peak_moment=_peak_event(worst.beside),
        breakdown=tuple(_breakdown(worst)),
        stages=tuple(_stage(cost, Totals(sent.collectives).wire()) for cost, sent in zip(costs, traffic, strict=True)),
    )


def _peak_event(active: StageActivations) -> PeakEvent:
    phase, _, op = active.where.partition(" of ")
    return PeakEvent(phase, op)


def _breakdown(worst: StageCost) -> Iterator[Breakdown]:
    held, active = worst.states, worst.active
    beside = (
        [("kept for micro-batches in flight", active.saved_in_flight), ("working micro-batch", active.working)]
        if worst.beside is active
        else [
            ("gradients in fp32, inside the optimizer step", held.step_bytes - held.making_bytes),
            ("a matrix's update, inside the optimizer step", held.making_bytes),
        ]
    )
    parts = [
        ("weights", held.weight_bytes),
        ("gradients", held.gradient_bytes),
        ("optimizer states", held.optimizer_bytes),
        ("buffers", held.buffer_bytes),
        *beside,
    ]
    yield from (Breakdown(name, amount, "counted") for name, amount in parts if amount)
    yield from worst.persistent


def _stage(cost: StageCost, sent: int) -> Stage:
    return Stage(
        stage=cost.stage,
        layers=sum(chunk.num_layers for chunk in cost.chunks),
        mtp_modules=sum(chunk.num_mtp for chunk in cost.chunks),
        embedding=any(chunk.embedding for chunk in cost.chunks),
        loss=any(chunk.loss for chunk in cost.chunks),
        in_flight=cost.beside.in_flight,
        weight_bytes=cost.states.weight_bytes,
        gradient_bytes=cost.states.gradient_bytes,
        optimizer_bytes=cost.states.optimizer_bytes,
        kept_bytes=cost.beside.saved_in_flight,
        working_bytes=cost.beside.working,
        allocated_peak_bytes=cost.peak,
        moment=cost.beside.where,
        saved_bytes=cost.saved_bytes,
        moments_bytes=cost.states.moment_bytes,
        sent_bytes=sent,
        between_steps_bytes=cost.between_steps,
        host_bytes=cost.states.host_bytes,
    )
