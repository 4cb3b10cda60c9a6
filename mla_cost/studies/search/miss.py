"""Where nothing fits: what comes nearest, what it lacks, and what would make it fit or legal."""

from __future__ import annotations

from functools import partial
from typing import Any, Final

from mla_cost.inputs.settings import PlanSettings
from mla_cost.mesh.schedule import idle
from mla_cost.pricing import automatic, rows, what_ifs, whole_model
from mla_cost.pricing.resolve import Illegal, scheme_of
from mla_cost.results import Verdict
from mla_cost.studies.search.options import CHOICES, SearchQuestion
from mla_cost.studies.search.parallel_configs import least_wrong
from mla_cost.studies.search.pool import Ranked, Watch, priced, unwatched
from mla_cost.studies.search.records import Candidate, Miss
from mla_cost.studies.search.reported import candidate, checked
from mla_cost.studies.search.space import Space

MOST_DEVICES: Final = 2**14
FIT: Final = {"fits", "tight"}
FULL: Final = "full"  # the recomputation that keeps least


def miss_of(space: Space, found: Ranked, watch: Watch = unwatched) -> Miss:
    """The nearest miss of a search in which nothing fits."""
    question = space.question
    if not found.nearest:
        return Miss(None, "", None, _problems(space), None, (), None)
    (row,) = found.nearest
    verdict = checked(space, row).verdict
    reason, short = verdict.reason if verdict else "", max(0, row["short"])
    watch("changes of the nearest miss", 0, 0)
    verdict = _with_levers(question, space.settings(row))
    levers = tuple(lever for lever in verdict.levers if lever.status in FIT)
    more, tried = more_devices(question, watch) if short else (None, ())
    return Miss(candidate(space, row), reason, short, (), verdict.remedy, levers, more, tried)


def _problems(space: Space) -> tuple[str, ...]:
    """What is wrong where nothing is legal, with the ways out."""
    ruled = space.tally.rows()
    if not space.parallel_configs:
        return least_wrong(space.question) or tuple(row.example for row in ruled)
    programs = [row.example for row in ruled if row.of == "candidates" and row.rule not in CHOICES]
    return tuple(dict.fromkeys(programs or (row.example for row in ruled)))


def _with_levers(question: SearchQuestion, settings: PlanSettings) -> Verdict:
    """The verdict of a plan with what each change of it would do, as far as the search itself may go."""
    model, device = question.model, question.device
    (row,) = rows.rows(model, device, settings)
    reported = what_ifs.with_levers(model, device, settings, row, allowed=partial(within, question)).verdict
    assert reported is not None
    return reported


def within(question: SearchQuestion, settings: PlanSettings) -> bool:
    """Whether a search may come to such a plan: by its limits, axes, forms and kernel; on more devices too."""
    own, asked = question.options, question.settings
    limits = own.limits(question.device)
    if any(getattr(settings, axis) > most for axis, most in limits.items()) or settings.form[0] not in asked.form:
        return False
    free = own.max_micro_batch if "micro_batch" not in question.axes else None
    if free is not None and settings.micro_batch > free:
        return False
    try:
        taken = settings.model_copy(update={"scheme": scheme_of(settings.form[0], settings.scheme).name})
    except Illegal:
        return False
    if any(getattr(taken, axis) not in values for axis, values in question.axes.items()):
        return False
    waits, slots = idle(whole_model.parallel_of(settings))
    return asked.kernel in {automatic.AUTO, settings.kernel} and 100 * waits <= own.max_idle * slots


def more_devices(question: SearchQuestion, watch: Watch = unwatched) -> tuple[Candidate | None, tuple[int, ...]]:
    """What fits on the fewest devices above those asked, with the least memory a rank can do with; what was tried.

    Doublings are tried until one fits, then the counts between it and the one before, in eighths of the power of two
    below, so that powers of two are among them. To be quick the micro-batch is the least allowed, and recomputation is
    full where that is allowed.
    """
    most, tried = max(question.options.devices), []
    devices, found = most * 2, None
    while devices <= MOST_DEVICES and found is None:
        tried.append(devices)
        found = _frugal(question, devices, watch)
        devices *= 2
    if found is None:
        return None, tuple(tried)
    below = found.devices // 2
    step = max(1, (1 << below.bit_length() - 1) // 8)
    for between in range((below // step + 1) * step, found.devices, step):
        tried.append(between)
        nearer = _frugal(question, between, watch)
        if nearer is not None:
            return nearer, tuple(tried)
    return found, tuple(tried)


def _frugal(question: SearchQuestion, devices: int, watch: Watch) -> Candidate | None:
    """The best that fits on so many devices, of those that need least memory; None where none does."""
    least: dict[str, Any] = {"micro_batch": question.axes.get("micro_batch", (1,))[:1]}
    if FULL in question.values("remat"):
        least["remat"] = (FULL,)
    options = question.options.model_copy(update={"devices": (devices,), "top": 1})
    space = Space(question._replace(options=options, axes={**question.axes, **least}))
    best = priced(space, watch).best
    if not best:
        return None
    checked(space, best[0])
    return candidate(space, best[0])
