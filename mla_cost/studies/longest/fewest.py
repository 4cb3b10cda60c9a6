"""The fewest devices that train a target sequence at the model scope: sp, pp, ep and dp vary, tp stays."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from math import gcd
from typing import NamedTuple

from mla_cost.errors import InputError
from mla_cost.inputs.settings import PlanSettings
from mla_cost.language.numbers import ceil_divide
from mla_cost.mesh.degrees import Parallel
from mla_cost.mesh.placement import even_layout
from mla_cost.mesh.schedule import idle
from mla_cost.pricing.resolve import Illegal
from mla_cost.pricing.whole_model import parallel_of
from mla_cost.studies.longest.bounds import divisors, smallest
from mla_cost.studies.longest.needs import FitQuestion, ModelNeeds
from mla_cost.weights.held import RankParameters

MOST_DEVICES = 2**20
MOST_DEGREE = 2**16
MOST_DOUBLED = 10  # micro-batches for a pipeline are at most so many times doubled from its stages


Watch = Callable[[str, int, int], None]


def unwatched(_words: str, _done: int, _total: int) -> None:
    """For a caller who wants to hear nothing."""


class Layout(NamedTuple):
    """Degrees and micro-batches that differ from the question's, and the devices that they take in all."""

    devices: int
    sp: int
    pp: int
    ep: int
    dp: int
    micro_batches: int = 1
    pipeline_layout: str | None = None

    def of(self, settings: PlanSettings) -> PlanSettings:
        """The settings with this layout."""
        return settings.model_copy(update={name: getattr(self, name) for name in self._fields[1:]})


class _Degrees(NamedTuple):
    """Degrees without dp. unit: devices of one step of dp, which rises in steps of `dp_step`."""

    unit: int
    sp: int
    pp: int
    ep: int
    dp_step: int
    pipeline_layout: str | None


def fewest(question: FitQuestion, step: Callable[[int], int], watch: Watch) -> Layout | None:
    """The layout of the fewest devices that fits; step: what divides a legal length at a degree sp.

    A pipeline has at least as many micro-batches as stages, so that what is reported to fit still fits in a full
    schedule, and enough of them that a stage waits no more than a search allows.
    dp is bisected, or where a global batch is stated gone through among what divides it: more of it spreads optimizer
    states over more ranks and changes nothing else of a rank's memory but the padding of those states, less than one
    part in a million of them.
    """
    needs = ModelNeeds(question)
    best: Layout | None = None
    every = sorted(_all_degrees(question, step), key=lambda degrees: degrees[:5])
    for done, degrees in enumerate(every):
        watch(f"layouts for {question.form} on {question.device.name}", done, len(every))
        most = min(((best.devices if best else MOST_DEVICES + 1) - 1) // degrees.unit, MOST_DEGREE // degrees.dp_step)
        found = _least_dp(needs, degrees, most) if most else None
        if found is not None:
            best = _layout(question, degrees, found)
    return best


def _all_degrees(question: FitQuestion, step: Callable[[int], int]) -> Iterator[_Degrees]:
    settings, model = question.settings, question.model
    tp = settings.tp
    for sp in divisors(settings.seq_len, MOST_DEGREE):
        if settings.seq_len % step(sp):
            continue
        for pp, layout in _pipelines(question):
            for ep in divisors(model.num_routed_experts or 1, MOST_DEGREE):
                dp_step = ep * settings.etp // gcd(ep * settings.etp, tp * sp)
                yield _Degrees(pp * tp * sp * dp_step, sp, pp, ep, dp_step, layout)


def _pipelines(question: FitQuestion) -> Iterator[tuple[int, str | None]]:
    """Numbers of stages that divide the layers, and powers of two with a layout as even as can be.

    A layout string, or layers stated for the ends, are for the pp that they were written for.
    """
    settings, model = question.settings, question.model
    layers = model.num_layers or 1
    stated = (settings.pipeline_layout, settings.first_layers, settings.last_layers)
    if any(each is not None for each in stated) or settings.virtual_stages > 1:
        yield settings.pp, settings.pipeline_layout
        return
    yield from ((pp, None) for pp in divisors(layers, MOST_DEGREE))
    powers = (1 << bit for bit in range(1, layers.bit_length()))
    yield from ((pp, even_layout(layers, model.num_mtp_layers or 0, pp)) for pp in powers if layers % pp)


def _least_dp(needs: ModelNeeds, degrees: _Degrees, most: int) -> int | None:
    """The least multiple of dp_step, up to `most` of them."""
    question = needs.question
    possible = _multiples(question, degrees, most)
    if not possible:
        return None

    def at(times: int) -> PlanSettings:
        return _layout(question, degrees, times).of(question.settings)

    try:
        last = at(possible[-1])
        held = {(each.trained, each.untrained): each for each in needs.held(last)}
        if not _fits(needs, last, [_Beside(each, 0, 0) for each in held.values()]):
            return None  # the states alone are too large
        active = _active(needs, last)
        if question.global_batch is not None:  # micro-batches, and so what is in flight, follow dp
            return next((times for times in possible if _fits(needs, at(times), _active(needs, at(times)))), None)
    except (Illegal, InputError):  # a combination that nobody asked for
        return None
    found = smallest(lambda place: _fits(needs, at(possible[place - 1]), active), len(possible))
    return None if found is None else possible[found - 1]


def _multiples(question: FitQuestion, degrees: _Degrees, most: int) -> Sequence[int]:
    """How many times dp_step may be taken: any, or what leaves a full pipeline's share of the global batch."""
    if question.global_batch is None:
        return range(1, most + 1) if least_micro_batches(question, degrees.pp) else []
    share, rest = divmod(question.global_batch, question.settings.micro_batch * degrees.dp_step)
    least = least_micro_batches(question, degrees.pp)
    return [] if rest or least is None else [times for times in divisors(share, most) if share // times >= least]


def least_micro_batches(question: FitQuestion, pp: int) -> int | None:
    """The fewest that fill a pipeline and leave its stages waiting no more than the question allows; None: none do."""
    parallel = parallel_of(question.settings)._replace(pp=pp, layout=None, first_layers=None, last_layers=None)
    return _least_micro_batches(
        parallel._replace(tp=1, sp=1, ep=1, etp=1, dp=1, num_micro_batches=1), question.max_idle
    )


@lru_cache(maxsize=1024)
def _least_micro_batches(parallel: Parallel, max_idle: int) -> int | None:
    unit = parallel.group if parallel.virtual_stages > 1 else 1
    first = ceil_divide(parallel.pp, unit)

    def quick(groups: int) -> bool:
        waits, slots = idle(parallel._replace(num_micro_batches=(first - 1 + groups) * unit))
        return 100 * waits <= max_idle * slots

    last = next((first << doubled for doubled in range(MOST_DOUBLED) if quick(first << doubled)), 0)
    found = smallest(quick, last)
    return None if found is None else (first - 1 + found) * unit


def _layout(question: FitQuestion, degrees: _Degrees, times: int) -> Layout:
    settings, dp = question.settings, degrees.dp_step * times
    each = max(settings.micro_batches, least_micro_batches(question, degrees.pp) or degrees.pp)
    if question.global_batch is not None:
        each = question.global_batch // (settings.micro_batch * dp)
    sizes = (degrees.unit * times, degrees.sp, degrees.pp, degrees.ep, dp)
    return Layout(*sizes, each, degrees.pipeline_layout)


class _Beside(NamedTuple):
    """What a stage holds, and the most that stands and is alive beside its states. Bytes."""

    held: RankParameters
    persistent: int
    active: int


def _active(needs: ModelNeeds, settings: PlanSettings) -> list[_Beside]:
    """Every stage; dp changes nothing of it."""
    found = (
        _Beside(held, sum(part.bytes for part in cost.persistent), cost.active.bytes)
        for cost, held in zip(needs.costs(settings), needs.held(settings), strict=True)
    )
    return list(dict.fromkeys(found))


def _fits(needs: ModelNeeds, settings: PlanSettings, stages: Sequence[_Beside]) -> bool:
    """Whether every stage has room."""
    states = [(needs.states(settings, stage.held), stage) for stage in stages]
    need = max(kept.total + stage.persistent + max(stage.active, kept.step_bytes) for kept, stage in states)
    return need <= needs.room(settings)
