"""The model scope: everything one training rank holds, stage by stage; the worst stage sets the verdict."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from mla_cost.declared.kernels import KERNELS
from mla_cost.declared.profiles import PROFILES
from mla_cost.errors import InputError
from mla_cost.inputs import schedules
from mla_cost.inputs.config import DeviceConfig, ModelConfig
from mla_cost.inputs.settings import PlanSettings
from mla_cost.language.evaluate import FENCE, FenceError
from mla_cost.language.machine import DTYPE_BYTES
from mla_cost.language.program import Profile
from mla_cost.mesh.degrees import Parallel
from mla_cost.mesh.legality import problems
from mla_cost.mesh.placement import Chunk, implied_layout, stages
from mla_cost.mesh.schedule import idle, schedule_of
from mla_cost.pricing import notes
from mla_cost.pricing import verdict as fit
from mla_cost.pricing.block import too_large
from mla_cost.pricing.compile import Key
from mla_cost.pricing.resolve import IMPLEMENTATION, Illegal, Point, named, refuse_form
from mla_cost.pricing.rows import flop_count, illegal
from mla_cost.pricing.stage import ChunkCost, Segment, Segments, StageActivations, activations, as_allocated
from mla_cost.pricing.unpriced import refusal
from mla_cost.results import (
    Basis,
    Breakdown,
    CollectiveCost,
    Communication,
    FlopCount,
    Flops,
    Memory,
    Moment,
    Result,
    Stage,
    Traffic,
    Verdict,
)
from mla_cost.weights.parameters import layer_kinds
from mla_cost.weights.states import (
    BUCKET_SOURCE,
    States,
    StateSettings,
    StepCollective,
    bucket_bytes,
    rank_parameters,
    reduced_bytes,
    shape_of,
    sharding_problem,
    states,
    step_collectives,
)

WITH_EXPERTS = frozenset({"moe", "mtp_moe"})  # the layers that run grouped products
EXPERTS_FUSED = (
    "router, permuting and weighing of expert rows are one fused op each, by construction: code that runs the router "
    "in fp32 keeps 4h bytes a token more, and code that weighs rows in fp32 and adds them by index 4Kh more (h hidden "
    "width, K experts per token)"
)
MTP_PARTS = "several multi-token-prediction modules, and one apart from the loss, are priced from their parts"
STEP = "step of gradients in fp32"
BUCKET = "ZeRO bucket"


class Cost(NamedTuple):
    """One stage evaluated. Bytes on one rank."""

    stage: int
    chunks: tuple[Chunk, ...]
    costs: tuple[ChunkCost, ...]
    states: States
    active: StageActivations
    standing: tuple[Breakdown, ...] = ()

    @property
    def allowed(self) -> int:
        """What of it is an allowance."""
        return sum(part.bytes for part in self.standing if part.basis == "budgeted")

    @property
    def beside(self) -> StageActivations:
        """What is alive beside states at the worst moment: of the schedule, or of the optimizer step behind it."""
        made = self.states.step_bytes
        if made <= self.active.bytes:
            return self.active
        return StageActivations(0, made, (0,) * len(self.costs), 0, None, STEP)

    @property
    def peak(self) -> int:
        """States, what stands for the whole run, and what is alive beside them at the worst moment."""
        return self.states.total + sum(part.bytes for part in self.standing) + self.beside.bytes


def rows(model: ModelConfig, device: DeviceConfig | None, settings: PlanSettings) -> list[Result]:
    """One result per form asked for. An impossible combination is a row too: `illegal`, its numbers None."""
    return [_row(model, device, form, settings) for form in settings.form]


def _row(model: ModelConfig, device: DeviceConfig | None, form: str, settings: PlanSettings) -> Result:
    try:
        return _priced(model, device, form, settings)
    except Illegal as error:
        return illegal(device, form, settings, str(error))


def _priced(model: ModelConfig, device: DeviceConfig | None, form: str, settings: PlanSettings) -> Result:
    chosen, why, costs = evaluated(model, device, form, settings)
    worst = told(costs, settings)
    point = worst.costs[0].segments[-1].point
    traffic = _traffic_of_stages(model, costs, chosen)
    memory, sent = _memory(costs, worst, traffic), traffic[worst.stage]
    _require_exact(worst, sent)
    return Result(
        device=device.name if device else None,
        scope=settings.scope,
        form=form,
        scheme=point.scheme.name,
        kernel=chosen.kernel,
        profile=settings.profile,
        settings={**_settings(chosen, point.key), "stage": worst.stage},
        key=point.key.facts.words(),
        memory=memory,
        communication=sent,
        flops=_flops(worst, chosen),
        compared_to_explicit=(),
        verdict=_told_verdict(model, device, chosen, costs) if device else None,
        notes=(
            *why,
            *PROFILES[settings.profile].notes,
            *_parts(model, costs),
            *_stated_parts(costs),
            *_spread(settings),
            *_laid_out(model, settings),
            *_scheduled(settings),
            *notes.notes(model, settings, point, device=device is not None),
        ),
    )


def _require_exact(worst: Cost, sent: Communication) -> None:
    """Refuse sums that not every evaluator would give exactly; every part of them is below the fence already.

    Raises:
        Illegal: the peak, or the payload or wire bytes of one optimizer step, reach 2^53.

    """
    payload = sum(call.payload_bytes for call in sent.collectives)
    wire = wire_bytes(sent)
    for what, amount in (("the worst stage holds", worst.peak), ("a rank sends in one step", max(payload, wire))):
        if amount >= FENCE:
            raise too_large(FenceError(f"{what} {amount} bytes"))


def _spread(settings: PlanSettings) -> Iterator[str]:
    """Where to go on from a model that nothing spreads over ranks."""
    if settings.tp == settings.pp == settings.ep == settings.dp == 1:
        yield (
            "every rank holds the whole model: spread it with --tp, --pp, --ep and --dp; `mla-cost search --devices N` "
            "ranks the ways to, `mla-cost fit` tells the fewest devices that hold it, `mla-cost plans` layouts to "
            "start from, --scope attention prices one block"
        )


def _parts(model: ModelConfig, costs: Sequence[Cost]) -> Iterator[str]:
    """What is so by construction, of the parts that the model has."""
    if any(kind.moe for kind in layer_kinds(model)):
        yield EXPERTS_FUSED
    chunks = [chunk for cost in costs for chunk in cost.chunks]
    if any(chunk.num_mtp > 1 or (chunk.num_mtp and not chunk.loss) for chunk in chunks):
        yield MTP_PARTS


def _laid_out(model: ModelConfig, settings: PlanSettings) -> Iterator[str]:
    """The layout that was taken where layers do not divide over the stages and none was stated."""
    layers = model.num_layers or 0
    layout = implied_layout(parallel_of(settings), layers, model.num_mtp_layers or 0)
    if layout is not None:
        over = f"pp {settings.pp}" + (f" x virtual_stages {settings.virtual_stages}" * (settings.virtual_stages > 1))
        yield (
            f"{layers} layers do not divide over {over}: taken as even as can be, the ends with the fewer, which is "
            f"--pipeline-layout '{layout}'; state another one to have it otherwise"
        )


def _scheduled(settings: PlanSettings) -> Iterator[str]:
    """What the schedule that was asked for costs in time."""
    if settings.schedule is not None:
        waits, taken = idle(parallel_of(settings))
        share = f"{waits:,} of {taken:,} slots ({100 * waits / taken:.1f} %)"
        yield f"schedule {settings.schedule}: a stage waits in {share}, were all passes alike"


def _stated_parts(costs: Sequence[Cost]) -> Iterator[str]:
    """What layers hold that only the user's own bytes describe."""
    keys = [segment.point.key for cost in costs for segment in _segments(cost)]
    if any(key.mixer == "other" for key in keys):
        yield (
            "layers without MLA keep the bytes that were stated for them (facts.other_layer_bytes); what their token "
            "mixer has alive for a moment, runs and sends is not counted"
        )
    if any(key.indexer == "own" for key in keys):
        yield (
            "indexers keep the bytes that were stated for them (facts.indexer_layer_bytes); attention to the tokens "
            "that they choose is priced as attention to all"
        )


def verdict(
    model: ModelConfig, device: DeviceConfig, settings: PlanSettings, point: Point, peak: int, allowed: int = 0
) -> Verdict:
    """What a device says to the allocated peak of the worst stage, of which `allowed` is budgeted. Bytes."""
    experts, degrees = bool(model.num_routed_experts), parallel_of(settings)
    groups = fit.Groups(degrees.communicators(experts=experts), degrees.further_communicators(experts=experts))
    reserved = bucket(settings)
    return fit.model_verdict(model, device, settings, point, peak, groups=groups, allowed=allowed, reserved=reserved)


def bucket(settings: PlanSettings) -> tuple[Basis, ...]:
    """What ZeRO reserves for the gradients that it reduces next; nothing under other shardings."""
    amount = bucket_bytes(state_settings(settings))
    return (Basis(BUCKET, amount, f"budgeted: {BUCKET_SOURCE}"),) if amount else ()


def _told_verdict(model: ModelConfig, device: DeviceConfig, settings: PlanSettings, costs: Sequence[Cost]) -> Verdict:
    """That of the stage which a row is about, with what its reader has to know beside it."""
    asked = told(costs, settings)
    point = asked.costs[0].segments[-1].point
    found = verdict(model, device, settings, point, asked.peak, asked.allowed)
    worst = max(costs, key=lambda cost: cost.peak)
    if found.status in {"fits", "tight"} and worst.peak > asked.peak:
        other = verdict(model, device, settings.model_copy(update={"stage": worst.stage}), point, worst.peak)
        if other.status == "oom":
            found = found._replace(reason=f"{found.reason}; the plan does not fit: {other.reason}")
    return fit.with_first_line(model, device, settings, point.form, found)


def told(costs: Sequence[Cost], settings: PlanSettings) -> Cost:
    """The stage that a row is about: the one asked for, else the worst.

    Raises:
        InputError: a stage that the pipeline does not have.

    """
    if settings.stage is None:
        return max(costs, key=lambda cost: cost.peak)
    require_stage(settings)
    return costs[settings.stage]


def require_stage(settings: PlanSettings) -> None:
    """Nothing, where the pipeline has the stage asked for.

    Raises:
        InputError: it does not.

    """
    last = settings.pp - 1
    if settings.stage is not None and settings.stage > last:
        raise InputError("no such stage", field="stage", value=settings.stage, allowed=f"0 to {last}" if last else "0")


def evaluated(
    model: ModelConfig, device: DeviceConfig | None, form: str, settings: PlanSettings
) -> tuple[PlanSettings, tuple[str, ...], list[Cost]]:
    """The settings with the kernel that runs, why that one, and every stage.

    Raises:
        Illegal: as `stage_costs`.

    """
    named("kernel", settings.kernel, {fit.AUTO: None, **KERNELS})
    chosen, why = fit.with_kernel(model, device, form, settings)
    family, arch = (device.family, device.arch) if device else ("none", "")
    return chosen, why, stage_costs(model, form, chosen, family, arch)


def busiest(model: ModelConfig, device: DeviceConfig | None, form: str, settings: PlanSettings) -> tuple[int, int]:
    """Bytes sent and flops run in one optimizer step by a rank of the stage that sends, or runs, most.

    Raises:
        Illegal: as `stage_costs`.

    """
    work = stage_work(model, device, form, settings)
    return (
        max(wire_bytes(sent) for sent, _ in work),
        max((flops.forward.executed or 0) + (flops.backward.executed or 0) for _, flops in work),
    )


def stage_work(
    model: ModelConfig, device: DeviceConfig | None, form: str, settings: PlanSettings
) -> list[tuple[Communication, Flops]]:
    """What a rank of every stage sends and runs in one optimizer step.

    Raises:
        Illegal: as `stage_costs`.

    """
    chosen, _, costs = evaluated(model, device, form, settings)
    traffic = _traffic_of_stages(model, costs, chosen)
    return [(sent, _flops(cost, chosen)) for sent, cost in zip(traffic, costs, strict=True)]


def saved(
    model: ModelConfig, device: DeviceConfig | None, form: str, settings: PlanSettings, stage: int
) -> Counter[tuple[str, str, int]]:
    """What one micro-batch keeps for backward on a stage: layer, name and bytes of every storage.

    Raises:
        Illegal: as `stage_costs`.

    """
    _, _, costs = evaluated(model, device, form, settings)
    found: Counter[tuple[str, str, int]] = Counter()
    for name, at in ((segment.name, segment.at) for segment in _segments(costs[stage])):
        allocations = at.account.timeline.allocations
        found.update((name, allocations[number].label, at.bytes_of(number)) for number in at.account.saved)
    return found


def parallel_of(settings: PlanSettings) -> Parallel:
    """The degrees of a plan.

    Raises:
        InputError: a schedule that does not exist, or a file that is none.

    """
    return Parallel(
        tp=settings.tp,
        sp=settings.sp,
        pp=settings.pp,
        ep=settings.ep,
        etp=settings.etp,
        dp=settings.dp,
        micro_batches=settings.micro_batches,
        virtual_stages=settings.virtual_stages,
        group_size=settings.micro_batch_group,
        layout=settings.pipeline_layout,
        first_layers=settings.first_layers,
        last_layers=settings.last_layers,
        schedule=None if settings.schedule is None else schedules.find(settings.schedule),
    )


def state_settings(settings: PlanSettings) -> StateSettings:
    """How states are kept under a plan."""
    return StateSettings(
        sharding=settings.sharding,
        weight_bytes=4 if settings.dtype == "fp32" else 2,
        gradient_bytes=4 if settings.gradient_dtype == "fp32" else 2,
        moment_bytes=4 if settings.moment_dtype == "fp32" else 2,
        master_bytes=_master_bytes(settings),
        sharded_down=settings.down_projections == "sharded",
        vocab_multiple=settings.vocab_multiple,
        whole_joined=not PROFILES[settings.profile].splits_joined,
        fp16=settings.dtype == "fp16",
    )


def _master_bytes(settings: PlanSettings) -> int:
    """Bytes of a master weight that is held beside the weight itself.

    fp32 weights are their own masters (NVIDIA/Megatron-LM@d98e8a64 optimizer/distrib_optimizer.py:466-469), but ZeRO
    clones a rank's part whatever its dtype (deepspeedai/DeepSpeed@edaa7221 runtime/zero/stage_1_and_2.py:492).
    """
    if settings.main_weights != "fp32":
        return 2
    own = settings.dtype == "fp32" and settings.sharding in {"ddp", "distributed"}
    return 0 if own else 4


def stage_costs(model: ModelConfig, form: str, settings: PlanSettings, family: str, arch: str = "") -> list[Cost]:
    """Every stage of the pipeline evaluated. family, arch: of the device.

    Raises:
        Illegal: the model's layers cannot be counted, the degrees do not divide it, or a program does not exist.

    """
    require_form(model, form, settings)
    require_legal(model, settings)
    parallel, keeping = parallel_of(settings), state_settings(settings)
    segments = Segments(model, form, settings, as_allocated(family))
    laid_out = stages(parallel, model.num_layers or 0, model.num_mtp_layers or 0)
    alike = {tuple(map(segments.alike, chunks)): chunks for chunks in laid_out}
    kept = {key: _kept(model, parallel, keeping, segments, chunks, arch) for key, chunks in alike.items()}
    return [
        Cost(at, chunks, costs, held, activations(parallel, at, costs), stands)
        for at, chunks in enumerate(laid_out)
        for costs, held, stands in [kept[tuple(map(segments.alike, chunks))]]
    ]


def _kept(
    model: ModelConfig,
    parallel: Parallel,
    keeping: StateSettings,
    segments: Segments,
    chunks: tuple[Chunk, ...],
    arch: str,
) -> tuple[tuple[ChunkCost, ...], States, tuple[Breakdown, ...]]:
    """What stages of equal layers have alike: their chunks, states, and what stands."""
    costs = tuple(map(segments.chunk, chunks))
    held = states(rank_parameters(model, parallel, chunks, keeping), parallel, keeping)
    return costs, held, standing(costs, segments.profile, arch)


def require_legal(model: ModelConfig, settings: PlanSettings) -> None:
    """What the model scope refuses before it prices anything.

    Raises:
        Illegal: layers that cannot be counted, degrees that do not divide, settings that exclude each other.

    """
    unpriced = refusal(model, settings.profile)
    if unpriced is not None:
        raise Illegal(unpriced)
    keeping = state_settings(settings)
    shape = shape_of(model, keeping, seq_len=settings.seq_len, micro_batch=settings.micro_batch)
    require_profile(settings)  # before degrees, whose way out could be one that a dispatcher refuses
    parallel = parallel_of(settings)
    wrong = [*(problem.text for problem in problems(parallel, shape)), sharding_problem(parallel, keeping)]
    if any(wrong):
        raise Illegal(next(filter(None, wrong)))


def require_form(model: ModelConfig, form: str, settings: PlanSettings) -> None:
    """What a profile never runs is said before anything is asked for.

    Raises:
        Illegal: the form is not its own.

    """
    refuse_form(model, form, named("profile", settings.profile, PROFILES))


def require_profile(settings: PlanSettings) -> None:
    """Settings that only an implementation has belong to its profile, and some exclude each other.

    Raises:
        Illegal: naming the setting and what to change.

    """
    own = PROFILES[settings.profile].texts
    for field in () if own else IMPLEMENTATION:
        if getattr(settings, field) != PlanSettings.model_fields[field].default:
            others = [name for name, profile in PROFILES.items() if profile.texts]
            used = f"use {field} {PlanSettings.model_fields[field].default}"
            raise Illegal(_belongs(field, settings, others, used))
    if settings.cross_entropy not in PROFILES[settings.profile].losses:
        others = [name for name, profile in PROFILES.items() if settings.cross_entropy in profile.losses]
        taken = ", ".join(PROFILES[settings.profile].losses)
        raise Illegal(_belongs("cross_entropy", settings, others, f"profile {settings.profile} takes {taken}"))
    if own and settings.dtype != "bf16":
        raise Illegal(f"profile {settings.profile} is priced in bf16 only, not {settings.dtype}; use dtype bf16")
    if settings.main_weights != "fp32" and settings.dtype != "bf16":
        raise Illegal("main_weights remainders are the lower halves of fp32 beside bf16 weights; use dtype bf16")
    if settings.dispatcher != "alltoall" and settings.ep == 1:
        raise Illegal(f"dispatcher {settings.dispatcher} needs ep above 1; use dispatcher alltoall")
    if settings.dispatcher != "alltoall" and settings.etp > 1:
        raise Illegal(f"dispatcher {settings.dispatcher} is not priced with etp above 1; use etp 1 or alltoall")
    if settings.shared_overlap == "on" and "shared_experts" in settings.remat.split("+"):
        raise Illegal("shared experts cannot both overlap and be recomputed; use shared_overlap off")


def _belongs(field: str, settings: PlanSettings, others: Sequence[str], way_out: str) -> str:
    return f"{field} {getattr(settings, field)} belongs to profile {' or '.join(others)}; {way_out}"


def standing(costs: Sequence[ChunkCost], profile: Profile, arch: str) -> tuple[Breakdown, ...]:
    """What stands for the whole run: tensors once per name and shape (counted), and allowances (budgeted)."""
    sizes: dict[tuple[str, int, int], int] = {}
    experts = False
    for segment in (segment for cost in costs for segment in cost.segments):
        size, values = segment.point.key.facts.elements, segment.at.values
        experts = experts or segment.point.key.layer in WITH_EXPERTS
        for item in segment.at.account.timeline.standing:
            outer, inner = size(item.outer).at(values), size(item.inner).at(values)
            sizes[item.name, outer, inner] = outer * inner * DTYPE_BYTES[item.dtype]
    named: dict[str, int] = {}
    for (name, _, _), amount in sizes.items():
        named[name] = named.get(name, 0) + amount
    allowed = (item for item in profile.allowances if experts or not item.with_experts)
    return (
        *(Breakdown(name, amount, "counted") for name, amount in named.items()),
        *(Breakdown(item.name, item.at(arch), "budgeted") for item in allowed if any(cost.segments for cost in costs)),
    )


def _settings(settings: PlanSettings, key: Key) -> dict[str, object]:
    fields = ("remat", "causal", "tp", "pp", "ep", "etp", "dp", "sharding", "cross_entropy")
    priced = ("value_padding", "v_layout", "attention_layout", "softmax_dtype", "mask", "norm", "names")
    own = IMPLEMENTATION if PROFILES[key.profile].texts else ()
    found = {field: getattr(key if field in PROFILES[key.profile].fixed else settings, field) for field in priced}
    found["value_padding"] = key.value_padding
    found["schedule"] = schedule_of(parallel_of(settings)).name
    return {**found, **{field: getattr(settings, field) for field in (*fields, *own)}}


def _memory(costs: Sequence[Cost], worst: Cost, traffic: Sequence[Communication]) -> Memory:
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
        peak_moment=_moment(active),
        allocated_peak_moment=_moment(worst.beside),
        breakdown=tuple(_breakdown(worst)),
        stages=tuple(_stage(cost, wire_bytes(sent)) for cost, sent in zip(costs, traffic, strict=True)),
    )


def _saved(cost: Cost) -> int:
    """Bytes that one micro-batch keeps for backward on a stage."""
    return sum(chunk.kept for chunk in cost.costs)


def _moment(active: StageActivations) -> Moment:
    phase, _, op = active.where.partition(" of ")
    return Moment(phase, op)


def _breakdown(worst: Cost) -> Iterator[Breakdown]:
    held, active = worst.states, worst.active
    beside = (
        [("kept for micro-batches in flight", active.kept), ("working micro-batch", active.working)]
        if worst.beside is active
        else [("gradients in fp32, inside the optimizer step", held.step_bytes)]
    )
    parts = [
        ("weights", held.weight_bytes),
        ("gradients", held.gradient_bytes),
        ("optimizer states", held.optimizer_bytes),
        ("buffers", held.buffer_bytes),
        *beside,
    ]
    yield from (Breakdown(name, amount, "counted") for name, amount in parts if amount)
    yield from worst.standing


def _stage(cost: Cost, sent: int) -> Stage:
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
        kept_bytes=cost.beside.kept,
        working_bytes=cost.beside.working,
        allocated_peak_bytes=cost.peak,
        moment=cost.beside.where,
        saved_bytes=_saved(cost),
        moments_bytes=cost.states.moment_bytes,
        sent_bytes=sent,
    )


# ---- communication and flops of one optimizer step


def _segments(cost: Cost) -> Iterable[Segment]:
    return (segment for chunk in cost.costs for segment in chunk.segments)


def wire_bytes(sent: Communication) -> int:
    """Bytes that a rank sends, over all axes and phases."""
    return sum(call.wire_bytes for call in sent.collectives)


def _traffic_of_stages(model: ModelConfig, costs: Sequence[Cost], settings: PlanSettings) -> list[Communication]:
    """What a rank of every stage sends; stages of equal layers, which share their chunks' costs, send the same."""
    alike = {id(cost.costs): cost for cost in costs}
    found = {each: _communication(model, cost, settings) for each, cost in alike.items()}
    return [found[id(cost.costs)] for cost in costs]


def _communication(model: ModelConfig, worst: Cost, settings: PlanSettings) -> Communication:
    """One optimizer step of one rank of a stage: every micro-batch, then what keeps weights equal."""
    found: dict[tuple[str, ...], CollectiveCost] = {}
    for segment in _segments(worst):
        for cost in _collectives(segment, settings.micro_batches):
            key = (cost.kind, cost.tensor, cost.phase, cost.axis, cost.dtype)
            found[key] = _joined(found[key], cost) if key in found else cost
    costs = [*found.values(), *_between_stages(model, worst, settings), *_step(model, worst, settings)]
    return Communication(_traffic(costs, "forward"), _traffic(costs, "backward"), tuple(costs))


def _collectives(segment: Segment, times: int) -> Iterator[CollectiveCost]:
    account, sizes, values = segment.at.account, segment.at.sizes, segment.at.values
    for called, (payload, wire) in zip(account.timeline.collectives, account.payloads, strict=True):
        yield CollectiveCost(
            kind=called.kind,
            tensor=called.tensor,
            phase=called.phase,
            axis=called.axis,
            group_size=values[called.ranks],
            count=times,
            dtype=called.dtype,
            payload_bytes=times * sizes[payload],
            wire_bytes=times * sizes[wire],
        )


def _joined(first: CollectiveCost, second: CollectiveCost) -> CollectiveCost:
    return first._replace(
        count=first.count + second.count,
        payload_bytes=first.payload_bytes + second.payload_bytes,
        wire_bytes=first.wire_bytes + second.wire_bytes,
    )


def _between_stages(model: ModelConfig, worst: Cost, settings: PlanSettings) -> Iterator[CollectiveCost]:
    """Hidden states to the next chunk and their gradients to the chunk before, point to point."""
    if settings.pp == 1:
        return
    width = 4 if settings.dtype == "fp32" else 2
    positions = settings.seq_len // settings.sp // settings.tp * settings.micro_batch
    once = width * positions * model.dims.hidden
    for phase, count in (
        ("forward", sum(not chunk.loss for chunk in worst.chunks)),
        ("backward", sum(not chunk.embedding for chunk in worst.chunks)),
    ):
        times = count * settings.micro_batches
        name = "hidden states" if phase == "forward" else "gradient of hidden states"
        if times:
            amount = times * once
            yield CollectiveCost(
                "point_to_point", name, phase, "pp", settings.pp, times, settings.dtype, amount, amount
            )


def _step(model: ModelConfig, worst: Cost, settings: PlanSettings) -> Iterator[CollectiveCost]:
    parallel, keeping = parallel_of(settings), state_settings(settings)
    held = rank_parameters(model, parallel, worst.chunks, keeping)
    for called in step_collectives(held, parallel, keeping):
        yield CollectiveCost(
            kind=called.kind,
            tensor=called.tensor,
            phase=called.phase,
            axis=called.axis,
            group_size=called.group_size,
            count=called.calls,
            dtype=_travels_as(called, parallel, settings),
            payload_bytes=called.calls * called.payload_bytes,
            wire_bytes=called.calls * called.wire_bytes,
        )


def _travels_as(called: StepCollective, parallel: Parallel, settings: PlanSettings) -> str:
    """The dtype of what the optimizer step sends."""
    keeping = state_settings(settings)
    if "gradients" not in called.tensor:
        return settings.dtype
    if not keeping.zero or called.axis in {"tp", "pp"}:
        return settings.gradient_dtype
    return "fp32" if reduced_bytes(keeping, parallel.sp) == 4 else settings.dtype


def _traffic(costs: Iterable[CollectiveCost], phase: str) -> Traffic:
    """The sums of a phase; what is called again in backward is sent in backward."""
    phases = {phase, "recompute"} if phase == "backward" else {phase}
    own = [cost for cost in costs if cost.phase in phases]
    return Traffic(sum(cost.payload_bytes for cost in own), sum(cost.wire_bytes for cost in own))


def _flops(worst: Cost, settings: PlanSettings) -> Flops:
    """One optimizer step of one rank of the worst stage."""
    return Flops(_phase_flops(worst, "forward", settings), _phase_flops(worst, "backward", settings))


def _phase_flops(worst: Cost, phase: str, settings: PlanSettings) -> FlopCount:
    counts = [
        flop_count(segment.at.account.timeline, segment.at.values, phase, settings.causal)
        for segment in _segments(worst)
    ]
    model = sum(count.model or 0 for count in counts) * settings.micro_batches
    return FlopCount(model, sum(count.executed or 0 for count in counts) * settings.micro_batches)
