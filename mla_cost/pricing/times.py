"""How long a plan takes: blocks forward and backward, or an optimizer step of the whole model.

Time is never below what a limit allows, is told with the band that the device's ceilings leave, and is None where the
device's file has no ceilings. The model is on one page: docs/time.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any, Final, NamedTuple

from mla_cost.declared.profiles import PROFILES
from mla_cost.inputs.config import DeviceConfig, ModelConfig
from mla_cost.inputs.settings import PlanSettings
from mla_cost.language.evaluate import Evaluation
from mla_cost.language.machine import DTYPE_BYTES
from mla_cost.language.numbers import maximum, minimum, where
from mla_cost.language.schedule import PassKind, ScheduledPass
from mla_cost.mesh.schedule import schedule_of, size_of
from mla_cost.pricing.block import BlockFigures
from mla_cost.pricing.stage import ChunkCost
from mla_cost.pricing.stage_cost import StageCost
from mla_cost.pricing.step_traffic import PHASES, hidden_states
from mla_cost.pricing.whole_model import parallel_of
from mla_cost.results import Communication, Seconds, Time, TimePart
from mla_cost.timing import rules, step
from mla_cost.timing.ceilings import ENDS, Ceilings, End, ceilings, has_ceilings
from mla_cost.timing.placement import placement
from mla_cost.timing.work import ExpertChoice, LinkTraffic, PhaseTime, WorkAccount, sent_by_link, timed, work_of

ONE_EXPERT: Final = ExpertChoice()
MIDDLE: Final = ENDS.index("middle")
HIDES: Final = {"tp": "tp_overlap", "ep": "expert_overlap"}  # axes whose exchanges a pass can hide under its own work
NAMES: Final = {
    "gemm": "products",
    "grouped_gemm": "expert products",
    "attention": "fused attention",
    **dict.fromkeys(("elementwise", "norm", "softmax", "copy"), "memory-bound ops"),
    "rope": "rotary embedding",
    "permutation": "permuting rows",
    "loss": "loss",
}


class Pricing(NamedTuple):
    """What every time of a plan depends on beside its programs: a device at one end of its band, and settings."""

    on: Ceilings
    by: LinkTraffic
    causal: bool
    graphs: bool
    hidden_axes: tuple[str, ...]
    dtype: str = "bf16"
    gradient_passes: int = 0

    @property
    def peak(self) -> float:
        """Flops a second that the device's sheet promises in the dtype of activations."""
        return self.on.peak_fp32 if self.dtype == "fp32" else self.on.peak_bf16


def switched(settings: PlanSettings, name: str) -> bool:
    """Whether an overlap is on: as stated, else as the profile has it."""
    stated = getattr(settings, name)
    return name in PROFILES[settings.profile].overlaps if stated is None else stated == "on"


def choice_of(model: ModelConfig) -> ExpertChoice:
    """How a token of a model chooses its experts."""
    stated = model.num_expert_groups, model.num_groups_per_token
    groups, own = (stated[0] or 1, stated[1] or 1) if all(stated) else (1, 1)
    return ExpertChoice(model.num_experts_per_token or 1, own, groups)


def pricing(
    device: DeviceConfig, settings: PlanSettings, end: End, chosen: ExpertChoice = ONE_EXPERT, degrees: Any = None
) -> Pricing:
    """What times stand on. chosen: of a token. degrees: of many plans, as arrays, in place of the settings'."""
    profile = PROFILES[settings.profile]
    on = ceilings(device, end, settings.devices_per_node)
    if profile.reduced_fp32 and device.family == "cuda":
        on = on._replace(peak_fp32=max(on.peak_fp32, on.peak_bf16 / 2))
    if settings.launch_floor is not None:
        on = on._replace(launch=settings.launch_floor * 1e-9)
    if settings.inter_node_gb_s is not None:
        on = on._replace(network=on.network * settings.inter_node_gb_s / float(str(device.inter_node_gb_s.value)))
    lie = placement(settings if degrees is None else degrees, settings.axis_order, on.domain)
    dispatch = settings.dispatcher in profile.once_per_node
    hidden = tuple(axis for axis, name in HIDES.items() if switched(settings, name))
    return Pricing(
        on, LinkTraffic(lie, dispatch, chosen), settings.causal, settings.graphs == "on", hidden, settings.dtype,
        profile.gradient_passes,
    )  # fmt: skip


def program_times(at: Evaluation, how: Pricing) -> dict[str, PhaseTime]:
    """Every phase of an evaluated program."""
    account, amounts = _amounts(at)
    return timed(account, amounts, how.on, how.causal, at.values, how.by)


@lru_cache(maxsize=64)
def _amounts(at: Evaluation) -> tuple[WorkAccount, list[int]]:
    """What a program runs; the ends of a band ask for the same."""
    account = work_of(at.account.timeline)
    return account, [amount.at(at.values) for amount in account.summed]


class TimedPass(NamedTuple):
    """A way through programs, forward or backward. Seconds, numbers or arrays.

    device: by class; links: by axis, all of it; hidden: of links, by axis; host: what launching takes.
    """

    device: Mapping[str, Any]
    links: Mapping[str, Any]
    hidden: Mapping[str, Any]
    host: Any

    @property
    def computing(self) -> Any:
        """On the device, or waiting for the host."""
        return maximum(sum(self.device.values()), self.host)

    @property
    def waits(self) -> Any:
        """For the host, beyond what the device does meanwhile."""
        return self.computing - sum(self.device.values())

    @property
    def exposed(self) -> dict[str, Any]:
        """Of collectives, by axis, what nothing hides."""
        return {axis: seconds - self.hidden.get(axis, 0.0) for axis, seconds in self.links.items()}

    @property
    def seconds(self) -> Any:
        """All of it."""
        return self.computing + sum(self.exposed.values())


def passed(parts: Iterable[Mapping[str, PhaseTime]], way: str, how: Pricing, more: Any = 0.0) -> TimedPass:
    """One way through programs in a row. more: seconds of memory-bound work beside them."""
    device: dict[str, Any] = {"elementwise": more}
    links: dict[str, Any] = {}
    launches: Any = 0
    for phase in (part[name] for part in parts for name in PHASES[way]):
        launches += phase.launches
        for into, amounts in ((device, phase.device), (links, phase.links)):
            for name, seconds in amounts.items():
                into[name] = into.get(name, 0.0) + seconds
    left, hidden = sum(device.values()), {}
    for axis in how.hidden_axes:
        if axis in links:
            hidden[axis] = minimum(links[axis], left)
            left = left - hidden[axis]
    return TimedPass(device, links, hidden, 0.0 if how.graphs else launches * how.on.host)


# ---- the attention scope


def block_time(it: BlockFigures, device: DeviceConfig | None, settings: PlanSettings) -> Time | None:
    """Forward and backward of equal blocks; None without a device, or ceilings of it."""
    if device is None or not has_ceilings(device):
        return None
    hows = [pricing(device, settings, end) for end in ENDS]
    slow, (forward, backward), fast = [_block(it, how) for how in hows]
    ways = [(one.seconds, two.seconds) for one, two in (fast, (forward, backward), slow)]
    both = [forward, backward]
    on = hows[MIDDLE]
    sent = _sent_by_link([it.at], it.layers, on)
    return Time(
        total=_band([sum(way) for way in ways]),
        forward=_band([way[0] for way in ways]),
        backward=_band([way[1] for way in ways]),
        parts=tuple(_parts(both)),
        exposed=_summed(way.exposed for way in both),
        hidden=_summed(way.hidden for way in both),
        inside_bytes=sent.inside,
        between_bytes=sent.between,
        bound=_bound(both),
        estimated=on.on.estimated,
    )


def _block(it: BlockFigures, how: Pricing) -> tuple[TimedPass, TimedPass]:
    times = program_times(it.at, how)
    one, two = (_times(passed([times], way, how), it.layers) for way in PHASES)
    return one, two


def _times(one: TimedPass, count: int) -> TimedPass:
    def each(amounts: Mapping[str, float]) -> dict[str, float]:
        return {name: count * seconds for name, seconds in amounts.items()}

    return TimedPass(each(one.device), each(one.links), each(one.hidden), count * one.host)


def _band(found: Sequence[float]) -> Seconds:
    """fast, middle, slow."""
    return Seconds(found[1], found[0], found[2])


def _parts(ways: Sequence[TimedPass]) -> Iterator[TimePart]:
    """What the ways are made of, largest first: classes on the device, waiting for the host, exposed exchanges."""
    device = _summed(way.device for way in ways)
    named: dict[tuple[str, str], float] = {}
    for name, seconds in device.items():
        told = NAMES[name], _limit_of(name)
        named[told] = named.get(told, 0.0) + seconds
    found = [TimePart(name, seconds, limit) for (name, limit), seconds in named.items()]
    found.append(TimePart("waiting for the host", sum(way.waits for way in ways), "host"))
    exposed = _summed(way.exposed for way in ways)
    found += [TimePart(f"exchanges over {axis}", seconds, "link") for axis, seconds in exposed.items()]
    yield from sorted((part for part in found if part.seconds > 0), key=lambda part: -part.seconds)


def _limit_of(work: str) -> str:
    return "compute" if work in {"gemm", "grouped_gemm", "attention"} else "memory"


def _summed(each: Any) -> dict[str, float]:
    found: dict[str, float] = {}
    for amounts in each:
        for name, seconds in amounts.items():
            found[name] = found.get(name, 0.0) + seconds
    return found


def _bound(ways: Sequence[TimedPass]) -> str:
    """What sets most of a time: compute, memory, link or host."""
    amounts: dict[str, float] = {}
    for part in _parts(ways):
        amounts[part.limit] = amounts.get(part.limit, 0.0) + part.seconds
    return max(amounts, key=lambda name: amounts[name], default="compute")


def _sent_by_link(programs: Sequence[Evaluation], times: int, how: Pricing) -> rules.SentByLink:
    """Wire bytes of programs by the class of their links."""
    each = [sent_by_link(at, how.by.lie) for at in programs]
    inside, between = (times * sum(one[at] for one in each) for at in range(2))
    return rules.SentByLink(round(inside), round(between))


# ---- the model scope


Chunks = Sequence[tuple[TimedPass, TimedPass]]  # forward and backward of each chunk of a stage


class StageTime(NamedTuple):
    """One stage: the passes of its chunks, and what follows the last of them. Seconds.

    tail: exchanges that keep weights equal; optimizer: the update itself.
    """

    chunks: tuple[tuple[TimedPass, TimedPass], ...]
    tail: StageTail
    optimizer: float

    @property
    def once(self) -> float:
        """Every chunk forward and backward, one micro-batch."""
        found: float = once(self.chunks)
        return found


def once(chunks: Chunks) -> Any:
    """Every chunk of a stage forward and backward, one micro-batch. Seconds, numbers or arrays."""
    return sum(one.seconds + two.seconds for one, two in chunks)


class StageTail(NamedTuple):
    """Exchanges that keep a stage's weights equal, and what can hide them. Seconds, numbers or arrays.

    links: by axis, all of them: of gradients in backward's place, of weights in forward's. computing: of a
    micro-batch's passes, forward and backward.
    """

    links: tuple[Mapping[str, Any], Mapping[str, Any]]
    computing: tuple[Any, Any]

    @property
    def seconds(self) -> Any:
        """All that is sent, as if nothing hid it."""
        return sum(sum(amounts.values()) for amounts in self.links)


class StepTime(NamedTuple):
    """A step at one end of the band. Seconds. passes: of the schedule; slowest: the stage that works most."""

    stages: tuple[StageTime, ...]
    passes: float
    slowest: int
    hop: float
    reduction: Mapping[str, float]
    hidden: Mapping[str, float]
    optimizer: float

    @property
    def seconds(self) -> float:
        """All of it."""
        return self.passes + sum(self.reduction.values()) + self.optimizer


def step_time(
    model: ModelConfig,
    device: DeviceConfig | None,
    settings: PlanSettings,
    costs: Sequence[StageCost],
    traffic: Sequence[Communication],
    model_flops: int,
) -> Time | None:
    """One optimizer step. model_flops: of all ranks, for the utilisation. None without a device, or ceilings of it."""
    if device is None or not has_ceilings(device):
        return None
    chosen = choice_of(model)
    hows = [pricing(device, settings, end, chosen) for end in ENDS]
    ends = [one_step(model, settings, costs, traffic, how) for how in hows]
    return _told(settings, costs, ends, hows[MIDDLE], model_flops)


def _told(
    settings: PlanSettings, costs: Sequence[StageCost], ends: Sequence[StepTime], how: Pricing, model_flops: int
) -> Time:
    """What is said of a step. ends: as ENDS has them; how: in the middle of the band."""
    slow, middle, fast = ends
    at, world = middle.stages[middle.slowest], parallel_of(settings).world
    ways = [way for pair in at.chunks for way in pair]
    every = [_times(way, settings.micro_batches) for way in ways]
    idle = middle.passes - settings.micro_batches * at.once
    seconds = middle.seconds
    rates = step_rates(settings, seconds, model_flops, how.peak)
    segments = [it for chunk in costs[middle.slowest].costs for it in chunk.segments]
    sent = _sent_by_link([it.at for it in segments], settings.micro_batches, how)
    days, hours, price = _training(settings, seconds, world)
    return Time(
        total=Seconds(seconds, fast.seconds, slow.seconds),
        forward=_band([sum(one.seconds for one, _ in end.stages[end.slowest].chunks) for end in (fast, middle, slow)]),
        backward=_band([sum(two.seconds for _, two in end.stages[end.slowest].chunks) for end in (fast, middle, slow)]),
        parts=(*_parts(every), *_tail(middle, idle)),
        exposed=_summed([*(way.exposed for way in every), middle.reduction]),
        hidden=_summed([*(way.hidden for way in every), middle.hidden]),
        inside_bytes=sent.inside,
        between_bytes=sent.between,
        bound=_bound(every),
        tokens_per_second=rates.tokens,
        tokens_per_second_per_device=rates.tokens / world,
        model_flops_utilisation=rates.utilisation,
        idle=idle,
        closed_idle=_closed_idle(settings, at.once),
        days=days,
        device_hours=hours,
        price=price,
        estimated=how.on.estimated,
        notes=tuple(_notes(every)),
    )


class StepRates(NamedTuple):
    """What a step makes of its seconds: tokens a second of all devices, and the share of their arithmetic."""

    tokens: Any
    utilisation: Any


def trained(numbers: Any) -> Any:
    """Tokens of an optimizer step. numbers: of a plan, or of many as arrays."""
    return numbers.seq_len * numbers.micro_batch * numbers.micro_batches * numbers.dp


def step_rates(numbers: Any, seconds: Any, model_flops: Any, peak: float) -> StepRates:
    """The rates of a step. numbers: as `trained`; model_flops: of all ranks; peak: flops a second of a device."""
    world = numbers.tp * numbers.sp * numbers.pp * numbers.dp
    return StepRates(trained(numbers) / seconds, model_flops / (seconds * peak * world))


def _tail(at: StepTime, idle: float) -> Iterator[TimePart]:
    yield TimePart("idle in the pipeline", max(idle, 0.0), "schedule")
    for axis, seconds in at.reduction.items():
        if seconds:
            yield TimePart(f"keeping weights equal over {axis}", seconds, "link")
    yield TimePart("optimizer", at.optimizer, "memory")


def _closed_idle(settings: PlanSettings, once: float) -> float:
    """(p - 1) / (v m) of the work of a stage: what a pipeline of equal stages leaves."""
    parallel = parallel_of(settings)
    return (parallel.pp - 1) * once / parallel.chunks


def _training(settings: PlanSettings, seconds: float, world: int) -> tuple[float | None, float | None, float | None]:
    """Days, device-hours and their price; None where no number of tokens is stated."""
    if settings.tokens is None:
        return None, None, None
    whole = settings.tokens / trained(settings) * seconds
    hours = whole / 3600 * world
    return whole / 86400, hours, None if settings.price is None else hours * float(settings.price)


def _notes(ways: Sequence[TimedPass]) -> Iterator[str]:
    waits, every = sum(way.waits for way in ways), sum(way.seconds for way in ways)
    if waits > 0.1 * every:
        yield f"host bound: {waits / every:.0%} of the passes wait for launches; graphs on takes them away"


def one_step(
    model: ModelConfig,
    settings: PlanSettings,
    costs: Sequence[StageCost],
    traffic: Sequence[Communication],
    how: Pricing,
) -> StepTime:
    """A step at one end of the band."""
    alike: dict[int, StageTime] = {}
    known: dict[int, dict[str, PhaseTime]] = {}
    for cost, sent in zip(costs, traffic, strict=True):
        if id(cost.costs) not in alike:
            alike[id(cost.costs)] = stage_time(settings, cost, sent, how, known)
    stages = tuple(alike[id(cost.costs)] for cost in costs)
    between = 0.0
    if settings.pp > 1 and not switched(settings, "p2p_overlap"):
        between = hop(settings, model, how, DTYPE_BYTES[settings.dtype])
    parallel = parallel_of(settings)
    passes = step.step_length(
        schedule_of(parallel), size_of(parallel), partial(duration, [stage.chunks for stage in stages]), between
    )
    slowest = max(range(len(stages)), key=lambda at: stages[at].once)
    kept = reduced((stage.tail for stage in alike.values()), settings)
    most = max(stage.optimizer for stage in alike.values())
    return StepTime(stages, passes, slowest, between, *kept, most)


def duration(stages: Sequence[Chunks], stage: int, done: ScheduledPass) -> Any:
    """How long a pass of a stage takes. stages: the passes of the chunks of each."""
    return stages[stage][done.chunk][done.kind is PassKind.BACKWARD].seconds


def stage_time(
    settings: PlanSettings, cost: StageCost, sent: Communication, how: Pricing, known: dict[int, dict[str, PhaseTime]]
) -> StageTime:
    """The passes of a stage, its exchanges of the step and its update. known: programs timed so far."""
    chunks = tuple(_chunk(chunk, settings, how, known) for chunk in cost.costs)
    calls = [call for call in sent.collectives if call.phase == "step"]
    each = [StepCall(it.kind, it.axis, it.group_size, it.count, it.wire_bytes // it.count) for it in calls]
    return StageTime(chunks, tail(each, chunks, how), update_seconds(cost.states, how))


class StepCall(NamedTuple):
    """Equal collectives of the optimizer step. wire_bytes: of one of them."""

    kind: str
    axis: str
    ranks: int
    calls: int
    wire_bytes: int


def tail(calls: Iterable[StepCall], chunks: Chunks, how: Pricing) -> StageTail:
    """What keeps the weights of a stage equal. chunks: its passes."""
    return StageTail(step_links(calls, how), computing(chunks))


def computing(chunks: Chunks) -> tuple[Any, Any]:
    """What the device does in a micro-batch's passes of a stage, forward and backward. Seconds, numbers or arrays."""
    return sum(one.computing for one, _ in chunks), sum(two.computing for _, two in chunks)


def step_links(calls: Iterable[StepCall], how: Pricing) -> tuple[dict[str, float], dict[str, float]]:
    """Seconds of collectives of the step by axis: gathers of weights, which forward may hide, and the others."""
    links: tuple[dict[str, float], dict[str, float]] = ({}, {})
    for call in calls:
        group = how.by.lie.of(call.axis, call.ranks)
        seconds = rules.collective(how.on, call.kind, call.kind, call.wire_bytes, group) * call.calls
        into = links[call.kind != "all_gather"]
        into[call.axis] = into.get(call.axis, 0.0) + seconds
    return links


def update_seconds(held: Any, how: Pricing) -> Any:
    """The update of a stage's weights. held: its states, `weights.states.States`; numbers or arrays. Seconds."""
    through = 2 * held.optimizer_bytes + (1 + how.gradient_passes) * held.gradient_bytes + held.weight_bytes
    return rules.moved(how.on, "optimizer", through, 1).seconds


def _chunk(
    chunk: ChunkCost, settings: PlanSettings, how: Pricing, known: dict[int, dict[str, PhaseTime]]
) -> tuple[TimedPass, TimedPass]:
    parts = []
    added = 0.0
    for it in chunk.segments:
        if id(it.at) not in known:
            known[id(it.at)] = program_times(it.at, how)
        parts.append(known[id(it.at)])
        added += it.at.gradient_bytes()
    more = adding_seconds(added, settings, how)
    return passed(parts, "forward", how), passed(parts, "backward", how, more)


def adding_seconds(made: Any, settings: PlanSettings, how: Pricing) -> Any:
    """Adding gradients of weights, where they are tensors of their own, to buffers that stand. made: their bytes."""
    wide, size = DTYPE_BYTES[settings.gradient_dtype], DTYPE_BYTES[settings.dtype]
    return (made + 2 * made * wide / size) / rules.memory_rate(how.on, "elementwise")


def hop(settings: Any, model: ModelConfig, how: Pricing, element_bytes: Any) -> Any:
    """What hidden states need from a stage to the next, where passes do not hide it. Seconds.

    settings: numbers of a plan, or arrays of many.
    """
    amount = hidden_states(settings, model.dims.hidden, element_bytes)
    group = how.by.lie.of("pp", settings.pp)
    return rules.collective(how.on, "point_to_point", "point_to_point", amount, group)


class Exchanged(NamedTuple):
    """Exchanges that keep weights equal, by axis: exposed, and hidden under a pass. Seconds, numbers or arrays."""

    exposed: dict[str, Any]
    hidden: dict[str, Any]


def reduced(tails: Iterable[StageTail], settings: PlanSettings) -> Exchanged:
    """Those of the stage that has most of them."""
    each = iter(tails)
    most = next(each)
    worst, found = most.seconds, _hidden(most, settings)
    for one in each:
        more = one.seconds > worst
        worst, own = where(more, one.seconds, worst), _hidden(one, settings)
        found = Exchanged(*(_either(more, new, old) for new, old in zip(own, found, strict=True)))
    return found


def _either(more: Any, new: Mapping[str, Any], old: Mapping[str, Any]) -> dict[str, Any]:
    return {axis: where(more, new.get(axis, 0.0), old.get(axis, 0.0)) for axis in dict.fromkeys((*old, *new))}


def _hidden(one: StageTail, settings: PlanSettings) -> Exchanged:
    exposed: dict[str, Any] = {}
    hidden: dict[str, Any] = {}
    ways = zip(("gather_overlap", "gradient_overlap"), one.links, one.computing, strict=True)
    for name, amounts, under in ways:
        left = under if switched(settings, name) else 0.0
        for axis, seconds in amounts.items():
            inside = minimum(seconds, left)
            left = left - inside
            exposed[axis] = exposed.get(axis, 0.0) + seconds - inside
            hidden[axis] = hidden.get(axis, 0.0) + inside
    return Exchanged(exposed, hidden)
