"""Where nothing fits: what comes nearest, what it lacks, and what would make it fit or legal."""

from __future__ import annotations

from typing import Final

from mla_cost import changes, whole_model
from mla_cost.results import Verdict
from mla_cost.searching.options import Question
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
        refused = dict.fromkeys(row.example for row in space.tally.rows() if row.of == "candidates")
        told = tuple(refused) if space.places else least_wrong(question)
        return Miss(None, "", None, told, None, (), more_devices(question))
    (row,) = found.nearest
    reason, short = checked(space, row).reason, max(0, row["short"])
    verdict = _with_levers(question, space.settings(row))
    levers = tuple(lever for lever in verdict.levers if lever.status in FIT)
    more = more_devices(question) if short else None
    return Miss(candidate(space, row), reason, short, (), verdict.remedy, levers, more)


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
