"""The fewest devices that train a target sequence at the model scope: sp, pp, ep and dp vary, tp stays."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import gcd
from typing import NamedTuple

from mla_cost.errors import InputError
from mla_cost.fitting.bounds import divisors, smallest
from mla_cost.fitting.needs import ModelNeeds, Question
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


class _Degrees(NamedTuple):
    """Degrees without dp. unit: devices of one step of dp, which rises in steps of `dp_step`."""

    unit: int
    sp: int
    pp: int
    ep: int
    dp_step: int


def fewest(question: Question, step: Callable[[int], int]) -> Layout | None:
    """The layout of the fewest devices that fits; step: what divides a legal length at a degree sp.

    dp is bisected: more of it spreads optimizer states over more ranks and changes nothing else of a rank's memory but
    the padding of those states, less than one part in a million of them.
    """
    needs = ModelNeeds(question)
    best: Layout | None = None
    for degrees in sorted(_all_degrees(question, step)):
        most = min(((best.devices if best else MOST_DEVICES + 1) - 1) // degrees.unit, MOST_DEGREE // degrees.dp_step)
        found = _least_dp(needs, degrees, most) if most else None
        if found is not None:
            best = Layout(degrees.unit * found, *degrees[1:4], degrees.dp_step * found)
    return best


def _all_degrees(question: Question, step: Callable[[int], int]) -> Iterator[_Degrees]:
    settings, model = question.settings, question.model
    tp = settings.tp
    for sp in divisors(settings.seq_len, MOST_DEGREE):
        if settings.seq_len % step(sp):
            continue
        for pp in _pipelines(question):
            for ep in divisors(model.num_routed_experts or 1, MOST_DEGREE):
                dp_step = ep * settings.etp // gcd(ep * settings.etp, tp * sp)
                yield _Degrees(pp * tp * sp * dp_step, sp, pp, ep, dp_step)


def _pipelines(question: Question) -> Iterator[int]:
    """Stages of equal numbers of layers; a layout string is for the pp that it was written for."""
    settings, layers = question.settings, question.model.num_layers or 1
    if settings.pipeline_layout is not None or settings.virtual_stages > 1:
        yield settings.pp
    else:
        yield from divisors(layers, MOST_DEGREE)


def _least_dp(needs: ModelNeeds, degrees: _Degrees, most: int) -> int | None:
    """The least multiple of dp_step, up to `most` of them."""

    def at(times: int) -> PlanSettings:
        changed = {"sp": degrees.sp, "pp": degrees.pp, "ep": degrees.ep, "dp": times * degrees.dp_step}
        return needs.question.settings.model_copy(update=changed)

    try:
        held = {(each.dense, each.expert, each.buffers): each for each in needs.held(at(most))}
        if not _fits(needs, at(most), [(each, 0) for each in held.values()]):
            return None  # the states alone are too large
        active = _active(needs, at(most))
    except (Illegal, InputError):  # a combination that nobody asked for
        return None
    return smallest(lambda times: _fits(needs, at(times), active), most)


def _active(needs: ModelNeeds, settings: PlanSettings) -> list[tuple[RankParameters, int]]:
    """What stages hold, each with the most that activations take beside it; dp changes neither. Bytes."""
    found: dict[tuple[int, ...], tuple[RankParameters, int]] = {}
    for cost, held in zip(needs.costs(settings), needs.held(settings), strict=True):
        key = (held.dense, held.expert, held.buffers)
        most = found[key][1] if key in found else 0
        found[key] = (held, max(most, cost.active.bytes))
    return list(found.values())


def _fits(needs: ModelNeeds, settings: PlanSettings, active: Sequence[tuple[RankParameters, int]]) -> bool:
    """Whether every stage has room. active: elements held, and bytes of activations beside them."""
    states = [(needs.states(settings, held), most) for held, most in active]
    return max(held.total + max(most, held.step_bytes) for held, most in states) <= needs.room(settings)
