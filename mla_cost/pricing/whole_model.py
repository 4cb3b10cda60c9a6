"""The model scope: everything one training rank holds, stage by stage; the worst stage sets the verdict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mla_cost.declared.kernels import KERNELS
from mla_cost.declared.profiles import PROFILES
from mla_cost.declared.shardings import SHARDINGS
from mla_cost.errors import InputError
from mla_cost.inputs import schedules
from mla_cost.inputs.config import DeviceConfig, ModelConfig
from mla_cost.inputs.settings import PlanSettings, is_stated
from mla_cost.inputs.table import TABLE
from mla_cost.mesh.degrees import Parallel
from mla_cost.mesh.legality import problems
from mla_cost.mesh.placement import Chunk, stages
from mla_cost.pricing import automatic, verdicts
from mla_cost.pricing.block import block_stage
from mla_cost.pricing.persistent import persistent_buffers
from mla_cost.pricing.resolve import IMPLEMENTATION, Illegal, Point, named, refuse_form, resolve
from mla_cost.pricing.stage import ChunkCost, Segments, activations, as_allocated, as_gathered
from mla_cost.pricing.stage_cost import StageCost
from mla_cost.pricing.stage_weights import RankWeights, WeightsAsked
from mla_cost.pricing.units import unit_of
from mla_cost.pricing.unpriced import refusal
from mla_cost.pricing.usable import Groups, Reserved, staging
from mla_cost.pricing.worst_stage import worse
from mla_cost.results import Breakdown, Verdict
from mla_cost.weights.held import RankParameters
from mla_cost.weights.states import States, StateSettings, bucket_bytes, shape_of, sharding_problem, states

BUCKET = "ZeRO bucket"
_MOST_KEYS = 16384  # of the softmax of unfused attention
MAIN_DTYPES = {"fp32": "fp32", "remainders": "int16"}  # of the setting `main_weights`


def verdict(
    model: ModelConfig, device: DeviceConfig, settings: PlanSettings, point: Point, peak: int, allowed: int = 0
) -> Verdict:
    """What a device says to the allocated peak of the worst stage, of which `allowed` is budgeted. Bytes."""
    if settings.scope == "attention":
        groups = groups_of_block(settings)
    else:
        groups = groups_of(parallel_of(settings), experts=bool(model.num_routed_experts))
    reserved = reserved_beside(device, settings, point.values)
    return verdicts.verdict(model, device, settings, point, peak, groups=groups, allowed=allowed, reserved=reserved)


def groups_of_block(settings: Any) -> Groups:
    """The communicators of the ranks that share a block. settings: its numbers may be arrays."""
    return Groups({"sp": settings.sp})


def groups_of(degrees: Parallel, *, experts: bool) -> Groups:
    """The communicators of a rank; degrees may be arrays."""
    return Groups(degrees.communicators(experts=experts), degrees.further_communicators(experts=experts))


def reserved_beside(device: DeviceConfig, settings: PlanSettings, at: Mapping[str, Any]) -> tuple[Reserved, ...]:
    """What a plan reserves beside what a device does. at: as `usable.staging`."""
    return (*staging(device, settings, at), *_bucket(settings))


def _bucket(settings: PlanSettings) -> tuple[Reserved, ...]:
    """What ZeRO reserves for the gradients that it reduces next; nothing under other shardings."""
    keeping = state_settings(settings)
    amount = bucket_bytes(keeping)
    return (Reserved(BUCKET, amount, f"budgeted: {keeping.row.bucket_source}"),) if amount else ()


def worst_of(costs: Sequence[StageCost]) -> StageCost:
    """The stage that holds most, of equal ones the first."""
    worst = costs[0]
    for cost in costs[1:]:
        if worse(cost.peak, worst.peak):
            worst = cost
    return worst


def reported(costs: Sequence[StageCost], settings: PlanSettings) -> StageCost:
    """The stage that a row is about: the one asked for, else the worst.

    Raises:
        InputError: a stage that the pipeline does not have.

    """
    if settings.stage is None:
        return worst_of(costs)
    require_stage(settings)
    return costs[settings.stage]


def with_rank(settings: PlanSettings, rank: str) -> PlanSettings:
    """The settings with the stage of a rank: `last`, as logs have it, `worst`, or its number among all ranks from 0.

    Stages are the outermost axis of ranks (NVIDIA/Megatron-LM@d98e8a64 core/parallel_state.py, order tp-cp-ep-dp-pp).

    Raises:
        InputError: no such rank, or a stage that is stated too.

    """
    degrees = settings.by_scope()
    world = degrees.pp * degrees.tp * degrees.sp * degrees.dp
    allowed = f"last, worst, 0 to {world - 1}"
    if settings.stage is not None:
        raise InputError("a stage is stated too; leave one of both out", field="--rank", value=rank)
    if rank == "worst":
        return settings
    number = world - 1 if rank == "last" else int(rank) if rank.isascii() and rank.isdigit() else world
    if settings.scope != "model" or number >= world:
        raise InputError("no such rank", field="--rank", value=rank, allowed=allowed)
    return settings.model_copy(update={"stage": number // (world // settings.pp)})


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
) -> tuple[PlanSettings, tuple[str, ...], list[StageCost]]:
    """The settings with the kernel that runs, why that one, and every stage: of blocks alone the one that they are.

    Raises:
        Illegal: as `stage_costs`.

    """
    named("kernel", settings.kernel, {automatic.AUTO: None, **KERNELS})
    chosen, why = automatic.with_kernel(model, device, form, settings)
    family, arch = (device.family, device.arch) if device else ("none", "")
    if settings.scope == "attention":
        return chosen, why, [block_stage(resolve(model, form, chosen), family, chosen.layers)]
    return chosen, why, stage_costs(model, form, chosen, family, arch)


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
        num_micro_batches=settings.micro_batches,
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
        optimizer=settings.optimizer,
        dtype=settings.dtype,
        gradient_dtype=settings.gradient_dtype,
        moment_dtype=settings.moment_dtype,
        main_dtype=MAIN_DTYPES[settings.main_weights],
        sharded_down=settings.down_projections == "sharded",
        replicas=settings.replicas,
        given_back=settings.reshard == "on",
        ahead=settings.prefetch,
        to_owners=settings.multi_rank_bucket_allreduce == "off",
        offload=settings.optimizer_offload,
    )


def stage_costs(model: ModelConfig, form: str, settings: PlanSettings, family: str, arch: str = "") -> list[StageCost]:
    """Every stage of the pipeline evaluated. family, arch: of the device.

    Raises:
        Illegal: the model's layers cannot be counted, the degrees do not divide it, or a program does not exist.

    """
    require_form(model, form, settings)
    require_legal(model, settings)
    parallel, keeping = parallel_of(settings), state_settings(settings)
    weights = RankWeights(model, WeightsAsked.of(form, settings))
    segments = segments_of(model, form, settings, family, weights)
    laid_out = stages(parallel, model.num_layers or 0, model.num_mtp_layers or 0)
    alike = {tuple(map(segments.alike, chunks)): chunks for chunks in laid_out}
    kept = {key: _kept(weights, parallel, keeping, segments, chunks, arch) for key, chunks in alike.items()}
    return [
        StageCost(
            at,
            chunks,
            costs,
            held,
            kept_states,
            activations(parallel, at, costs),
            buffers,
            left=segments.left_of(costs, chunks),
        )
        for at, chunks in enumerate(laid_out)
        for costs, held, kept_states, buffers in [kept[tuple(map(segments.alike, chunks))]]
    ]


def segments_of(model: ModelConfig, form: str, settings: PlanSettings, family: str, weights: RankWeights) -> Segments:
    """The layers of a plan, with what they weigh where they are gathered one by one."""
    parallel, keeping = parallel_of(settings), state_settings(settings)
    gathering = keeping.gathering
    look = as_allocated(family) if gathering is None else as_gathered(family)
    return Segments(
        model,
        form,
        settings,
        look,
        gathering=gathering,
        unit=lambda layer: unit_of(weights.unit(layer), parallel, keeping),
    )


def _kept(
    weights: RankWeights,
    parallel: Parallel,
    keeping: StateSettings,
    segments: Segments,
    chunks: tuple[Chunk, ...],
    arch: str,
) -> tuple[tuple[ChunkCost, ...], RankParameters, States, tuple[Breakdown, ...]]:
    """What stages of equal layers have alike: their chunks, weights, states and persistent buffers."""
    costs = tuple(map(segments.chunk, chunks))
    held = weights.parameters(chunks, parallel.pp)
    return costs, held, states(held, parallel, keeping), persistent_buffers(costs, segments.profile, arch)


def require_legal(model: ModelConfig, settings: PlanSettings) -> None:
    """What the model scope refuses before it prices anything.

    Raises:
        Illegal: layers that cannot be counted, degrees that do not divide, settings that exclude each other.

    """
    unpriced = refusal(model, settings.profile)
    if unpriced is not None:
        raise Illegal(unpriced)
    keeping = state_settings(settings)
    shape = shape_of(model, keeping, seq_len=settings.seq_len, micro_batch_size=settings.micro_batch)
    require_profile(settings)  # before degrees, whose way out could be one that a dispatcher refuses
    parallel = parallel_of(settings)
    wrong = [*(problem.text for problem in problems(parallel, shape)), sharding_problem(parallel, keeping)]
    wrong.append(unit_problem(model, settings))
    if any(wrong):
        raise Illegal(next(filter(None, wrong)))


def unit_problem(model: ModelConfig, settings: PlanSettings) -> str:
    """Why a sharding that gathers units is not priced for this model and profile, with the way out; else empty."""
    row = state_settings(settings).row
    if row.profiles and settings.profile not in row.profiles:
        others = " or ".join(name for name, other in SHARDINGS.items() if not other.profiles)
        return f"sharding {row.name} is priced under profile {' or '.join(row.profiles)}; use it, or sharding {others}"
    if row.own_weights and model.num_mtp_layers:
        ends = "multi-token prediction uses the embedding and the head"
        return row.own_weights.format(shared=ends, way_out="set mtp to 0")
    if row.own_weights and model.tied_embeddings:
        return row.own_weights.format(shared="embedding and head are tied", way_out="use sharding zero2 or distributed")
    return ""


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
        if is_stated(settings, field):
            others = [name for name, profile in PROFILES.items() if profile.texts]
            used = f"use {field} {TABLE[field].default}"
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
    _require_attention(settings)
    if settings.remat_layers is not None and settings.remat != "full":
        raise Illegal(
            f"remat_layers counts the layers of a chunk that remat full runs again, and remat is {settings.remat}; "
            "use remat full, or leave remat_layers out"
        )
    if settings.shared_overlap == "on" and "shared_experts" in settings.remat.split("+"):
        raise Illegal("shared experts cannot both overlap and be recomputed; use shared_overlap off")


def _require_attention(settings: PlanSettings) -> None:
    """Transformer Engine's unfused attention: no context parallelism, and its own softmax below 16,384 keys only.

    NVIDIA/TransformerEngine@d0067d0da6cb attention/dot_product_attention/utils.py:1080-1090; softmax.py:199-219.

    Raises:
        Illegal: naming the setting and what to change.

    """
    used = f"attention_backend {settings.attention_backend}"
    if settings.attention_backend == automatic.FUSED:
        return
    if settings.sp > 1:
        raise Illegal(f"{used} runs on one rank of a sequence; use sp 1, or attention_backend {automatic.FUSED}")
    if settings.seq_len >= _MOST_KEYS or settings.seq_len % 8:
        raise Illegal(
            f"{used} is priced with its own softmax, for sequences below {_MOST_KEYS} that 8 divides, and seq_len is "
            f"{settings.seq_len}; use attention_backend {automatic.FUSED}"
        )


def _belongs(field: str, settings: PlanSettings, others: Sequence[str], way_out: str) -> str:
    return f"{field} {getattr(settings, field)} belongs to profile {' or '.join(others)}; {way_out}"
