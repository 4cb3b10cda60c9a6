"""The fewest devices that train a target sequence at the model scope: sp, pp, ep and dp vary, tp stays."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import gcd
from typing import Any, NamedTuple

from mla_cost.errors import InputError
from mla_cost.fitting.bounds import divisors, smallest
from mla_cost.fitting.needs import ModelNeeds, Question
from mla_cost.parallel import even_layout
from mla_cost.resolve import Illegal
from mla_cost.settings import PlanSettings
from mla_cost.states import RankParameters

MOST_DEVICES = 2**20
MOST_DEGREE = 2**16


class Layout(NamedTuple):
    """Degrees that differ from the question's, and the devices that they take in all."""

    devices: int
    sp: int
    pp: int
    ep: int
    dp: int
    pipeline_layout: str | None = None


class _Degrees(NamedTuple):
    """Degrees without dp. unit: devices of one step of dp, which rises in steps of `dp_step`."""

    unit: int
    sp: int
    pp: int
    ep: int
    dp_step: int
    pipeline_layout: str | None


def fewest(question: Question, step: Callable[[int], int]) -> Layout | None:
    """The layout of the fewest devices that fits; step: what divides a legal length at a degree sp.

    dp is bisected: more of it spreads optimizer states over more ranks and changes nothing else of a rank's memory but
    the padding of those states, less than one part in a million of them.
    """
    needs = ModelNeeds(question)
    best: Layout | None = None
    for degrees in sorted(_all_degrees(question, step), key=lambda degrees: degrees[:5]):
        most = min(((best.devices if best else MOST_DEVICES + 1) - 1) // degrees.unit, MOST_DEGREE // degrees.dp_step)
        found = _least_dp(needs, degrees, most) if most else None
        if found is not None:
            dp, layout = degrees.dp_step * found, degrees.pipeline_layout
            best = Layout(degrees.unit * found, degrees.sp, degrees.pp, degrees.ep, dp, layout)
    return best


def _all_degrees(question: Question, step: Callable[[int], int]) -> Iterator[_Degrees]:
    settings, model = question.settings, question.model
    tp = settings.tp
    for sp in divisors(settings.seq_len, MOST_DEGREE):
        if settings.seq_len % step(sp):
            continue
        for pp, layout in _pipelines(question):
            for ep in divisors(model.num_routed_experts or 1, MOST_DEGREE):
                dp_step = ep * settings.etp // gcd(ep * settings.etp, tp * sp)
                yield _Degrees(pp * tp * sp * dp_step, sp, pp, ep, dp_step, layout)


def _pipelines(question: Question) -> Iterator[tuple[int, str | None]]:
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

    def at(times: int) -> PlanSettings:
        changed: dict[str, Any] = {"sp": degrees.sp, "pp": degrees.pp, "ep": degrees.ep, "dp": times * degrees.dp_step}
        changed["pipeline_layout"] = degrees.pipeline_layout
        return needs.question.settings.model_copy(update=changed)

    try:
        held = {(each.dense, each.expert, each.buffers): each for each in needs.held(at(most))}
        if not _fits(needs, at(most), [_Beside(each, 0, 0) for each in held.values()]):
            return None  # the states alone are too large
        active = _active(needs, at(most))
    except (Illegal, InputError):  # a combination that nobody asked for
        return None
    return smallest(lambda times: _fits(needs, at(times), active), most)


class _Beside(NamedTuple):
    """What a stage holds, and the most that stands and is alive beside its states. Bytes."""

    held: RankParameters
    standing: int
    active: int


def _active(needs: ModelNeeds, settings: PlanSettings) -> list[_Beside]:
    """Every stage; dp changes nothing of it."""
    found = (
        _Beside(held, sum(part.bytes for part in cost.standing), cost.active.bytes)
        for cost, held in zip(needs.costs(settings), needs.held(settings), strict=True)
    )
    return list(dict.fromkeys(found))


def _fits(needs: ModelNeeds, settings: PlanSettings, stages: Sequence[_Beside]) -> bool:
    """Whether every stage has room."""
    states = [(needs.states(settings, stage.held), stage) for stage in stages]
    need = max(kept.total + stage.standing + max(stage.active, kept.step_bytes) for kept, stage in states)
    return need <= needs.room(settings)
