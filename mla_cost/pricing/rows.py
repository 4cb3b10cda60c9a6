"""One row of a plan: a point's figures as typed results."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from mla_cost.declared import defaults
from mla_cost.declared.forms import FORMS
from mla_cost.inputs.config import DeviceConfig, ModelConfig
from mla_cost.inputs.settings import PlanSettings
from mla_cost.language import evaluate
from mla_cost.language.dims import declared, product_text
from mla_cost.language.machine import DTYPE_BYTES, PROGRAMS, Allocation, Timeline
from mla_cost.language.polynomial import Polynomial
from mla_cost.pricing import automatic, verdicts
from mla_cost.pricing import notes as ignored
from mla_cost.pricing.block import BlockFigures, figures
from mla_cost.pricing.compare import compare
from mla_cost.pricing.compile import timeline
from mla_cost.pricing.flops import flops
from mla_cost.pricing.key import form_of
from mla_cost.pricing.links import with_links
from mla_cost.pricing.notes import why_no_layout
from mla_cost.pricing.resolve import Illegal, Point, resolve
from mla_cost.pricing.step_traffic import collectives, communication
from mla_cost.pricing.times import block_time
from mla_cost.results import (
    Beside,
    Breakdown,
    Communication,
    Flops,
    Memory,
    PeakEvent,
    Result,
    TensorCost,
    Verdict,
)


def rows(
    model: ModelConfig, device: DeviceConfig | None, settings: PlanSettings, *, timed: bool = True
) -> list[Result]:
    """One result per form asked for. An impossible combination is a row too: `illegal`, its numbers None.

    timed: whether anybody reads how long it takes, which costs as much as all else.
    """
    family = device.family if device else "none"
    chosen = {form: automatic.with_kernel(model, device, form, settings) for form in settings.form}
    priced = {form: _try(model, form, own, family) for form, (own, _) in chosen.items()}
    baseline = _baseline(model, automatic.with_kernel(model, device, defaults.BASELINE, settings)[0], family, priced)
    found = []
    for form, it in priced.items():
        own, why = chosen[form]
        if isinstance(it, Illegal):
            found.append(illegal(device, form, own, str(it)))
        else:
            row = _row(model, device, own, it, baseline, why, timed=timed)
            found.append(row._replace(beside=_beside(model, device, settings, row) if why else None))
    return found


def _beside(model: ModelConfig, device: DeviceConfig | None, settings: PlanSettings, row: Result) -> Beside | None:
    """The same block op by op, beside a row whose fused kernel was chosen; None where it makes no program."""
    if device is None or row.kernel == automatic.EAGER:
        return None
    asked = settings.model_copy(update={"kernel": automatic.EAGER})
    it = _try(model, row.form, asked, device.family)
    if isinstance(it, Illegal):
        return None
    reported = verdicts.brief_verdict(model, device, asked, it)
    peaks = it.saved_bytes, it.peak_bytes, it.allocated_peak_bytes
    return Beside(automatic.EAGER, *peaks, reported.status, reported.reason)


def _try(model: ModelConfig, form: str, settings: PlanSettings, family: str) -> BlockFigures | Illegal:
    try:
        return figures(resolve(model, form, settings), family, settings.layers)
    except Illegal as error:
        return error


def _baseline(
    model: ModelConfig, settings: PlanSettings, family: str, priced: dict[str, BlockFigures | Illegal]
) -> BlockFigures | None:
    """What every form is compared with: the baseline form under its own scheme, if these settings allow it."""
    found = priced.get(defaults.BASELINE) if settings.scheme is None else None
    if found is None:
        found = _try(model, defaults.BASELINE, settings.model_copy(update={"scheme": None}), family)
    return None if isinstance(found, Illegal) else found


def illegal(device: DeviceConfig | None, form: str, settings: PlanSettings, reason: str) -> Result:
    """The row of a combination that makes no program."""
    return Result(
        device=device.name if device else None,
        scope=settings.scope,
        form=form,
        scheme=settings.scheme or FORMS[form].scheme,
        kernel=settings.kernel,
        profile=settings.profile,
        settings=_asked(settings),
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
    it: BlockFigures,
    baseline: BlockFigures | None,
    why: tuple[str, ...],
    *,
    timed: bool,
) -> Result:
    found = numbers(model, device, settings, it)
    verdict = found.verdict
    time = block_time(it, device, settings) if timed else None
    notes = [*why, *_notes(it), *ignored.block_notes(settings, it.point, device=device is not None)]
    if timed:
        notes += ignored.of_times(settings, time, lambda other: block_time(it, device, other))
    if device and verdict and verdict.status == "oom":
        notes.insert(0, verdicts.fused_way_out(model, device, it.point.form, settings))
    return found._replace(
        settings=_settings(settings, it.point),
        memory=_memory(it, found.memory),
        communication=with_links(found.communication, device, settings),
        compared_to_explicit=compare(it, baseline) if baseline is not None else (),
        notes=tuple(note for note in notes if note),
        time=time,
    )


def numbers(model: ModelConfig, device: DeviceConfig | None, settings: PlanSettings, it: BlockFigures) -> Result:
    """A result with what columns tell of it, and without its tensors, moments, time and words."""
    return Result(
        device=device.name if device else None,
        scope=settings.scope,
        form=it.point.form,
        scheme=it.point.scheme.name,
        kernel=it.point.kernel.name,
        profile=settings.profile,
        settings={},
        key=it.point.key.predicates.words(),
        memory=Memory(
            saved_bytes=it.saved_bytes,
            peak_bytes=it.peak_bytes,
            parameter_bytes=it.parameter_bytes,
            allocated_peak_bytes=it.allocated_peak_bytes,
        ),
        communication=communication(collectives(it.at, it.layers)),
        flops=flops([it.at], it.layers, settings.causal),
        compared_to_explicit=(),
        verdict=verdicts.verdict(model, device, settings, it) if device else None,
    )


def _asked(settings: PlanSettings) -> dict[str, Any]:
    """The settings of a row that has no program, as they were asked for."""
    fields = ("v_layout", "value_padding", "attention_layout", "softmax_dtype", "mask", "names", "remat", "causal")
    return {field: getattr(settings, field) for field in (*fields, "layers", "idle_mlp")}


def _settings(settings: PlanSettings, point: Point) -> dict[str, Any]:
    key = point.key
    return {
        "v_layout": key.v_layout,
        "v_layout_effect": "as set" if point.v_layout_matters else f"no effect: {why_no_layout(point)}",
        "value_padding": key.value_padding,
        "attention_layout": key.attention_layout,
        "softmax_dtype": key.softmax_dtype,
        "mask": key.mask,
        "names": key.names,
        "norm": key.norm,
        "remat": settings.remat,
        "causal": settings.causal,
        "layers": settings.layers,
        "idle_mlp": settings.idle_mlp,
    }


# ---- memory


def _memory(it: BlockFigures, memory: Memory) -> Memory:
    """The figures that columns tell, with where they come from."""
    at = it.allocated.peak.event
    alive = [a for a in it.at.account.gradients if _allocations(it)[a].alive_at(at)]
    gradients = sum(map(it.at.bytes_of, alive))
    work = it.at.work_at(at, it.kinds)
    return memory._replace(
        parameter_gradient_bytes=gradients,
        parameter_gradient_total_bytes=it.gradient_bytes,
        kernel_workspace_bytes=work,
        peak_moment=_peak_event(it, it.seen.peak.event),
        allocated_peak_moment=_peak_event(it, at),
        tensors=_tensors(it),
        breakdown=_breakdown(it, gradients, work),
    )


def _allocations(it: BlockFigures) -> list[Allocation]:
    return it.at.account.timeline.allocations


def _peak_event(it: BlockFigures, event: int) -> PeakEvent:
    found = it.at.account.timeline.events[event]
    return PeakEvent(found.phase, found.op)


def _breakdown(it: BlockFigures, gradients: int, work: int) -> tuple[Breakdown, ...]:
    own = it.allocated.peak.bytes - gradients - work
    parts = [
        ("tensors of one block", own),
        ("kernel workspace", work),
        ("parameters", it.parameter_bytes),
        ("parameter gradients of one block", gradients),
        ("the other blocks", it.allocated_peak_bytes - it.parameter_bytes - it.allocated.peak.bytes),
    ]
    return tuple(Breakdown(name, amount, "counted") for name, amount in parts if amount)


def _tensors(it: BlockFigures) -> tuple[TensorCost, ...]:
    """Every storage that is saved or alive at the peak."""
    event = it.seen.peak.event
    size = {dim: it.point.key.predicates.size(dim).at(it.at.values) for dim in _dims(it.at.account.timeline)}
    return tuple(
        TensorCost(
            name=allocation.label,
            dims=text,
            shape=tuple(size[dim] for dim in allocation.dims),
            dtype=allocation.dtype,
            bytes=it.at.bytes_of(allocation.number),
            storage=allocation.number,
            saved=allocation.saved,
            alive_at_peak=allocation.alive_at(event),
            formula=formula,
        )
        for allocation, text, formula in _texts(it.at.account.timeline)
        if allocation.saved or (allocation.alive_at(event) and allocation.kind != "parameter_gradient")
    )


@lru_cache(maxsize=PROGRAMS)
def _dims(run: Timeline) -> tuple[str, ...]:
    return tuple({dim: None for allocation in run.allocations for dim in allocation.dims})


@lru_cache(maxsize=PROGRAMS)
def _texts(run: Timeline) -> tuple[tuple[Allocation, str, str], ...]:
    return tuple((a, " ".join(a.dims), byte_formula(a)) for a in run.allocations)


def byte_formula(allocation: Allocation) -> str:
    """The bytes of a storage from the symbols of its dims: 2*S*b*l*(k+r)."""
    return product_text((str(DTYPE_BYTES[allocation.dtype]), *declared(allocation.dims)))


# ---- notes


def _notes(it: BlockFigures) -> list[str]:
    notes = []
    if not it.point.v_layout_matters:
        notes.append(f"v_layout: no effect ({why_no_layout(it.point)})")
    notes += it.point.scheme.notes
    if _sends_more_than_baseline(it):
        notes.append(f"at this number of heads per rank it sends more bytes than {defaults.BASELINE}")
    return notes


def _sends_more_than_baseline(it: BlockFigures) -> bool:
    """Whether forward sends more than the baseline form under its own scheme, where that divides the heads alike."""
    declared = form_of(defaults.BASELINE)
    if it.point.scheme.name == declared.scheme or not it.point.scheme.divides_heads:
        return False
    run = timeline(it.point.key._replace(form=declared.name, scheme=declared.scheme, kernel=defaults.ATTENTION_KERNEL))
    return _sent(it.at.account.timeline, it) > _sent(run, it)


def _sent(run: Timeline, it: BlockFigures) -> int:
    return _wire(run).at(it.at.values)


@lru_cache(maxsize=PROGRAMS)
def _wire(run: Timeline) -> Polynomial:
    return evaluate.wire(run, "forward")
