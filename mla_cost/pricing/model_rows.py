"""The model scope: one result for the worst stage, with everything that one training rank of it holds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mla_cost.declared.profiles import PROFILES
from mla_cost.inputs.config import DeviceConfig, ModelConfig
from mla_cost.inputs.settings import PlanSettings
from mla_cost.language.evaluate import EXACT_LIMIT, ExactLimitError
from mla_cost.mesh.schedule import schedule_of
from mla_cost.pricing import notes, verdicts
from mla_cost.pricing.block import too_large
from mla_cost.pricing.key import Key
from mla_cost.pricing.links import with_links
from mla_cost.pricing.model_notes import model_notes
from mla_cost.pricing.resolve import IMPLEMENTATION, Illegal
from mla_cost.pricing.rows import illegal
from mla_cost.pricing.stage import StageActivations
from mla_cost.pricing.stage_work import communications, stage_flops
from mla_cost.pricing.step_traffic import Totals
from mla_cost.pricing.times import step_time
from mla_cost.pricing.whole_model import StageCost, evaluated, parallel_of, reported, verdict, worst_of
from mla_cost.results import Breakdown, Communication, Memory, PeakEvent, Result, Stage, Time, Verdict


def rows(
    model: ModelConfig, device: DeviceConfig | None, settings: PlanSettings, *, timed: bool = True
) -> list[Result]:
    """One result per form asked for. An impossible combination is a row too: `illegal`, its numbers None.

    timed: whether anybody reads how long a step takes, which costs as much as all else.
    """
    return [_row(model, device, form, settings, timed=timed) for form in settings.form]


def _row(model: ModelConfig, device: DeviceConfig | None, form: str, settings: PlanSettings, *, timed: bool) -> Result:
    try:
        return _priced(model, device, form, settings, timed=timed)
    except Illegal as error:
        return illegal(device, form, settings, str(error))


def _priced(
    model: ModelConfig, device: DeviceConfig | None, form: str, settings: PlanSettings, *, timed: bool
) -> Result:
    chosen, why, costs = evaluated(model, device, form, settings)
    worst = reported(costs, settings)
    point = worst.costs[0].segments[-1].point
    traffic = communications(model, costs, chosen)
    memory, sent = _memory(costs, worst, traffic), traffic[worst.stage]
    _require_exact(worst, traffic)

    def time_of(asked: PlanSettings) -> Time | None:
        return step_time(model, device, asked, costs, traffic, _model_flops(costs, asked))

    time = time_of(chosen) if timed else None
    return Result(
        device=device.name if device else None,
        scope=settings.scope,
        form=form,
        scheme=point.scheme.name,
        kernel=chosen.kernel,
        profile=settings.profile,
        settings={**_settings(chosen, point.key), "stage": worst.stage},
        key=point.key.predicates.words(),
        memory=memory,
        communication=with_links(sent, device, chosen),
        flops=stage_flops(worst, chosen),
        compared_to_explicit=(),
        verdict=_reported_verdict(model, device, chosen, costs) if device else None,
        notes=(
            *why,
            *PROFILES[settings.profile].notes,
            *model_notes(model, settings, costs),
            *notes.notes(model, settings, point, device=device is not None),
            *(notes.of_times(chosen, time, time_of) if timed else ()),
        ),
        time=time,
    )


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


def _reported_verdict(
    model: ModelConfig, device: DeviceConfig, settings: PlanSettings, costs: Sequence[StageCost]
) -> Verdict:
    """That of the stage which a row is about, with what its reader has to know beside it."""
    asked = reported(costs, settings)
    point = asked.costs[0].segments[-1].point
    found = verdict(model, device, settings, point, asked.peak, asked.allowed)
    worst = worst_of(costs)
    if found.status in {"fits", "tight"} and worst.peak > asked.peak:
        other = verdict(model, device, settings.model_copy(update={"stage": worst.stage}), point, worst.peak)
        if other.status == "oom":
            found = found._replace(reason=f"{found.reason}; the plan does not fit: {other.reason}")
    return verdicts.with_first_line(model, device, settings, point.form, found)


def _settings(settings: PlanSettings, key: Key) -> dict[str, object]:
    fields = ("remat", "causal", "tp", "pp", "ep", "etp", "dp", "sharding", "optimizer", "cross_entropy")
    priced = ("value_padding", "v_layout", "attention_layout", "softmax_dtype", "mask", "norm", "names", "moe_style")
    own = IMPLEMENTATION if PROFILES[key.profile].texts else ()
    found = {field: getattr(key if field in PROFILES[key.profile].fixed else settings, field) for field in priced}
    found["value_padding"] = key.value_padding
    found["schedule"] = schedule_of(parallel_of(settings)).name
    return {**found, **{field: getattr(settings, field) for field in (*fields, *own)}}


def _memory(costs: Sequence[StageCost], worst: StageCost, traffic: Sequence[Communication]) -> Memory:
    held, active = worst.states, worst.active
    return Memory(
        saved_bytes=_saved(worst),
        peak_bytes=active.bytes,
        parameter_bytes=held.weight_bytes,
        parameter_gradient_bytes=held.gradient_bytes,
        parameter_gradient_total_bytes=held.gradient_bytes,
        optimizer_bytes=held.optimizer_bytes,
        kernel_workspace_bytes=None,
        allocated_peak_bytes=worst.peak,
        peak_moment=_peak_event(active),
        allocated_peak_moment=_peak_event(worst.beside),
        breakdown=tuple(_breakdown(worst)),
        stages=tuple(_stage(cost, Totals(sent.collectives).wire()) for cost, sent in zip(costs, traffic, strict=True)),
    )


def _saved(cost: StageCost) -> int:
    """Bytes that one micro-batch keeps for backward on a stage."""
    return sum(chunk.saved_bytes for chunk in cost.costs)


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
        saved_bytes=_saved(cost),
        moments_bytes=cost.states.moment_bytes,
        sent_bytes=sent,
        between_steps_bytes=cost.between_steps,
    )
