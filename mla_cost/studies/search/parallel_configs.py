"""Every way to lay a model out on a number of devices, and the rule that forbids each of the others.

The rules are those of `legality.problems`, each asked of the degrees that it is about, so that a rule is tried once for
all layouts that share them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from itertools import product
from typing import Any, Literal, NamedTuple

from mla_cost.errors import Problem
from mla_cost.language.schedule import Schedule
from mla_cost.mesh.degrees import Parallel
from mla_cost.mesh.legality import Shape, problems
from mla_cost.mesh.placement import even_layout
from mla_cost.mesh.schedule import idle
from mla_cost.pricing.whole_model import parallel_of, state_settings
from mla_cost.studies.longest.bounds import divisors
from mla_cost.studies.search.options import CHOSEN, SearchQuestion
from mla_cost.studies.search.records import Ruled
from mla_cost.weights.states import shape_of

_Unit = Literal["layouts", "batches", "candidates"]
_PARTS = re.compile(r",? or | and ")  # of a way out
_FOLLOWING = re.compile(rf"\b({'|'.join(CHOSEN)})\b")
_DP = re.compile(r"\bdp\b")
_NOTHING = Shape(heads=0, num_layers=0)  # what degrees have to divide where a rule is not about it


class ParallelConfig(NamedTuple):
    """Degrees, the stages' layers (None: as many each) and the micro-batches that make the global batch."""

    tp: int
    sp: int
    pp: int
    ep: int
    etp: int
    dp: int
    virtual_stages: int
    pipeline_layout: str | None
    micro_batch: int
    micro_batches: int
    waits: int  # slots of its schedule in which a stage waits for others, were all passes alike
    slots: int  # that its schedule takes

    @property
    def devices(self) -> int:
        """Ranks in all."""
        return self.tp * self.sp * self.pp * self.dp

    @property
    def stated(self) -> dict[str, Any]:
        """What of it a plan states."""
        return {name: value for name, value in self._asdict().items() if name not in {"waits", "slots"}}

    @property
    def layout(self) -> tuple[int, ...]:
        """What makes it another layout, and no variant of the same: all degrees, but not the micro-batch."""
        return self.tp, self.sp, self.pp, self.ep, self.etp, self.dp, self.virtual_stages

    @property
    def idle(self) -> float:
        """The share of the schedule that a stage waits for others, were all steps alike."""
        return self.waits / self.slots


class Tally:
    """How many each rule forbids."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, _Unit], tuple[int, str]] = {}

    def add(self, rule: str, of: _Unit, count: int, example: str) -> None:
        """Count what a rule forbids; the first example stays."""
        before, first = self._counts.get((rule, of), (0, example))
        self._counts[rule, of] = before + count, first

    def join(self, other: Tally) -> None:
        """Count what another one counted."""
        for (rule, of), (count, example) in other._counts.items():
            self.add(rule, of, count, example)

    def rows(self) -> tuple[Ruled, ...]:
        """Every rule that forbids something, the strictest first."""
        found = [Ruled(rule, of, *counted) for (rule, of), counted in self._counts.items() if counted[0]]
        return tuple(sorted(found, key=lambda row: -row.number))


def parallel_configs(question: SearchQuestion, tally: Tally) -> list[ParallelConfig]:
    """Every legal config, for each number of devices asked."""
    return [config for devices in question.options.devices for config in _on(question, devices, tally)]


def _on(question: SearchQuestion, devices: int, tally: Tally) -> Iterator[ParallelConfig]:
    experts = _experts(question)
    for mesh in _meshes(question, devices):
        wrong = _first_problem(question, mesh)
        if wrong is not None:
            tally.add(wrong.field, "layouts", len(experts), wrong.text)
            continue
        for ep, etp in experts:
            layout = mesh._replace(ep=ep, etp=etp)
            wrong = _expert_problem(question, layout)
            if wrong is not None:
                tally.add(wrong.field, "layouts", 1, wrong.text)
            else:
                yield from _batches(question, layout, tally)


def _meshes(question: SearchQuestion, devices: int) -> Iterator[Parallel]:
    """Every tp sp pp dp that makes the devices, with each number of virtual stages."""
    every = tuple(divisors(devices, devices))
    for tp in _of(question, "tp", every):
        for sp in _of(question, "sp", _dividing(every, devices // tp)):
            for pp in _of(question, "pp", _dividing(every, devices // tp // sp)):
                for chunks in question.axes.get("virtual_stages", (question.settings.virtual_stages,)):
                    dp = devices // tp // sp // pp
                    yield Parallel(tp, sp, pp, dp=dp, virtual_stages=chunks, layout=_layout(question, pp, chunks))


def _dividing(every: tuple[int, ...], number: int) -> tuple[int, ...]:
    return tuple(divisor for divisor in every if number % divisor == 0)


def _of(question: SearchQuestion, axis: str, possible: tuple[int, ...]) -> tuple[int, ...]:
    """The possible values of an axis that the user allows."""
    allowed = question.axes.get(axis, possible)
    return tuple(value for value in possible if value in allowed)


def _experts(question: SearchQuestion) -> tuple[tuple[int, int], ...]:
    """Every ep and etp: those that the user allows, else the divisors of the experts and the plan's etp."""
    number = question.model.num_routed_experts or 1
    shared = question.axes.get("ep", tuple(divisors(number, number)))
    return tuple(product(shared, question.axes.get("etp", (question.settings.etp,))))


def _layout(question: SearchQuestion, pp: int, chunks: int) -> str | None:
    """Layers as even as can be over all chunks of all stages; None where they split equally, or not at all."""
    layers, parts = question.model.num_layers or 0, pp * chunks
    implied = 1 < parts <= layers and layers % parts
    return even_layout(layers, question.model.num_mtp_layers or 0, parts) if implied else None


# ---- rules


@lru_cache(maxsize=2**16)
def _broken(parallel: Parallel, shape: Shape) -> Problem | None:
    wrong = next(iter(problems(parallel, shape)), None)
    return None if wrong is None else _of_search(wrong)


def _of_search(wrong: Problem) -> Problem:
    """A problem whose way out is a search's own: what follows from the rest cannot be stated there."""
    parts = _PARTS.split(wrong.way_out)
    kept = [part for part in parts if not _FOLLOWING.search(part)]
    if len(kept) == len(parts):
        return wrong
    more = ["ask for more devices"] if _DP.search(wrong.way_out) else []
    return wrong._replace(way_out=", or ".join([*kept, *more] or ["change global_batch"]))


def _first_problem(question: SearchQuestion, mesh: Parallel) -> Problem | None:
    """The first rule that a layout breaks, whatever its experts and micro-batches."""
    limits = question.options.limits(question.device)
    over = next((axis for axis, limit in limits.items() if axis != "ep" and getattr(mesh, axis) > limit), None)
    if over is not None:
        return _over(over, getattr(mesh, over), limits[over])
    shape, batch = _shape(question), question.options.global_batch
    asked = (
        (Parallel(tp=mesh.tp), shape._replace(num_experts=0, moe_ffn=0, num_layers=0, seq_len=None, global_batch=None)),
        (Parallel(tp=mesh.tp, sp=mesh.sp), _NOTHING._replace(seq_len=shape.seq_len, megatron_sp=shape.megatron_sp)),
        (_pipeline(mesh), _NOTHING._replace(num_layers=shape.num_layers, num_mtp=shape.num_mtp)),
        (Parallel(dp=mesh.dp, num_micro_batches=max(1, batch // mesh.dp)), _NOTHING._replace(global_batch=batch)),
    )
    return next((wrong for parallel, of in asked if (wrong := _broken(parallel, of)) is not None), None)


def _over(axis: str, value: int, limit: int) -> Problem:
    return Problem(f"max_{axis}", f"{axis} {value} is above max_{axis} {limit}", f"raise max_{axis}")


def _pipeline(mesh: Parallel) -> Parallel:
    """The pipeline alone, with micro-batches enough for its schedule."""
    return Parallel(pp=mesh.pp, virtual_stages=mesh.virtual_stages, layout=mesh.layout, num_micro_batches=mesh.pp)


def _expert_problem(question: SearchQuestion, layout: Parallel) -> Problem | None:
    limit = question.options.max_ep
    if limit is not None and layout.ep > limit:
        return _over("ep", layout.ep, limit)
    shape = _shape(question)
    of = _NOTHING._replace(num_experts=shape.num_experts, moe_ffn=shape.moe_ffn)
    wrong = _broken(Parallel(dp=layout.stage_ranks, ep=layout.ep, etp=layout.etp), of)
    return wrong if wrong is None else _broken(layout._replace(pp=1, virtual_stages=1, layout=None), of)


def _shape(question: SearchQuestion) -> Shape:
    settings = question.settings
    return shape_of(question.model, state_settings(settings), seq_len=settings.seq_len)


# ---- micro-batches


def _batches(question: SearchQuestion, layout: Parallel, tally: Tally) -> Iterator[ParallelConfig]:
    batch, most = question.options.global_batch, question.options.max_micro_batch
    share = batch // layout.dp
    sizes = question.axes.get("micro_batch") or tuple(divisors(share, share if most is None else most))
    for size in sizes:
        count = max(1, share // size)
        asked = _pipeline(layout)._replace(
            num_micro_batches=count, dp=layout.dp, layout=None, schedule=_schedule(question)
        )
        wrong = _broken(asked, _NOTHING._replace(global_batch=batch, micro_batch_size=size))
        if wrong is None:
            config = ParallelConfig(*_degrees(layout), layout.virtual_stages, layout.layout, size, count, *idle(asked))
            wrong = _too_idle(question, config)
        if wrong is not None:
            tally.add(wrong.field, "batches", 1, wrong.text)
        else:
            yield config


def _schedule(question: SearchQuestion) -> Schedule | None:
    return parallel_of(question.settings).schedule


def _degrees(layout: Parallel) -> tuple[int, int, int, int, int, int]:
    return layout.tp, layout.sp, layout.pp, layout.ep, layout.etp, layout.dp


def _too_idle(question: SearchQuestion, config: ParallelConfig) -> Problem | None:
    most = question.options.max_idle
    if 100 * config.waits <= most * config.slots:
        return None
    message = (
        f"at pp {config.pp} with {config.micro_batches} micro-batches a stage waits {config.idle:.0%} of its schedule, "
        f"and max_idle is {most}"
    )
    return Problem("max_idle", message, "raise max_idle or global_batch")


# ---- where nothing is legal


def least_wrong(question: SearchQuestion) -> tuple[str, ...]:
    """What is wrong with the layout that breaks the fewest rules, with the ways out."""
    numbers = question.options.devices
    found = [_all_wrong(question, mesh) for devices in numbers for mesh in _meshes(question, devices)]
    return min(found, key=len) if found else tuple(_without_mesh(question, devices) for devices in numbers)


def _without_mesh(question: SearchQuestion, devices: int) -> str:
    """That no degrees that the user allows make the devices, with the degrees that do."""
    allowed = [f"{axis} {_listed(question.axes[axis])}" for axis in ("tp", "sp", "pp") if axis in question.axes]
    whole = ", ".join(map(str, divisors(devices, devices)))
    return f"{' with '.join(allowed)} does not divide {devices} devices; allow degrees that do: {whole}"


def _listed(values: tuple[int, ...]) -> str:
    return " or ".join(map(str, values))


def _all_wrong(question: SearchQuestion, mesh: Parallel) -> tuple[str, ...]:
    limits, batch = question.options.limits(question.device), question.options.global_batch
    over = [_over(axis, getattr(mesh, axis), limit) for axis, limit in limits.items() if getattr(mesh, axis) > limit]
    full = mesh._replace(num_micro_batches=max(1, batch // mesh.dp), schedule=_schedule(question))
    rules = map(_of_search, problems(full, _shape(question)._replace(global_batch=batch)))
    return tuple(wrong.text for wrong in (*over, *rules))
