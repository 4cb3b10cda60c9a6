"""Where nothing fits: what comes nearest, what it lacks, and what would make it fit or legal."""

from __future__ import annotations

from typing import Final

from mla_cost import changes, whole_model
from mla_cost.results import Verdict
from mla_cost.searching.options import CHOICES, Question
from mla_cost.searching.places import least_wrong
from mla_cost.searching.pool import Priced, priced
from mla_cost.searching.records import Candidate, Miss
from mla_cost.searching.space import Space
from mla_cost.searching.told import candidate, checked
from mla_cost.settings import PlanSettings

MOST_DEVICES: Final = 2**14
FIT: Final = {"fits", "tight"}


def miss_of(space: Space, found: Priced) -> Miss:
    """The nearest miss of a search in which nothing fits."""
    question = space.question
    if not found.nearest:
        return Miss(None, "", None, _problems(space), None, (), None)
    (row,) = found.nearest
    reason, short = checked(space, row).reason, max(0, row["short"])
    verdict = _with_levers(question, space.settings(row))
    levers = tuple(lever for lever in verdict.levers if lever.status in FIT)
    more = more_devices(question) if short else None
    return Miss(candidate(space, row), reason, short, (), verdict.remedy, levers, more)


def _problems(space: Space) -> tuple[str, ...]:
    """What is wrong where nothing is legal, with the ways out."""
    ruled = space.tally.rows()
    if not space.places:
        return least_wrong(space.question) or tuple(row.example for row in ruled)
    programs = [row.example for row in ruled if row.of == "candidates" and row.rule not in CHOICES]
    return tuple(dict.fromkeys(programs or (row.example for row in ruled)))


def _with_levers(question: Question, settings: PlanSettings) -> Verdict:
    """The verdict of a plan with what each change of it would do."""
    model, device = question.model, question.device
    (row,) = whole_model.rows(model, device, settings)
    told = changes.with_levers(model, device, settings, row).verdict
    assert told is not None
    return told


def more_devices(question: Question) -> Candidate | None:
    """The best that fits on the least doubling of the devices, with micro-batches as small as may be."""
    smallest = {"micro_batch": question.axes.get("micro_batch", (1,))[:1]}
    devices = max(question.options.devices) * 2
    while devices <= MOST_DEVICES:
        options = question.options.model_copy(update={"devices": (devices,), "top": 1})
        asked = question._replace(options=options, axes={**question.axes, **smallest})
        space = Space(asked)
        best = priced(space).best
        if best:
            checked(space, best[0])
            return candidate(space, best[0])
        devices *= 2
    return None
