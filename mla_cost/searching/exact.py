"""A row that is told, priced again by `plan`'s own evaluator: every figure exact, and compared with the row's."""

from __future__ import annotations

from collections import Counter

from mla_cost import whole_model
from mla_cost.arrays.codes import STATUSES
from mla_cost.results import Communication, Flops
from mla_cost.searching.order import Row
from mla_cost.searching.records import Candidate
from mla_cost.searching.space import Space


def candidate_of(space: Space, row: Row) -> Candidate:
    """The candidate of a row.

    Raises:
        ArithmeticError: `plan` says otherwise, which no input may cause.

    """
    settings, place = space.settings(row), space.places[row["place"]]
    (result,) = whole_model.rows(space.question.model, space.question.device, settings)
    verdict = result.verdict
    assert verdict is not None
    if verdict.required_bytes is None or verdict.usable_bytes is None or verdict.headroom_bytes is None:
        raise ArithmeticError(f"{settings} has figures in the search, but a plan says: {verdict.reason}")
    stages = whole_model.stage_work(space.question.model, space.question.device, result.form, settings)
    by_axis = max((_by_axis(sent) for sent, _ in stages), key=lambda axes: sum(axes.values()))
    sent, flops = sum(by_axis.values()), max((flops for _, flops in stages), key=_executed)
    found = {"required": verdict.required_bytes, "sent": sent, "status": verdict.status}
    searched = {"required": row["required"], "sent": row["sent"], "status": STATUSES[row["status"]]}
    if found != searched:
        raise ArithmeticError(f"{settings} is {searched} in the search, a plan says {found}")
    return Candidate(
        form=result.form,
        scheme=result.scheme,
        kernel=result.kernel,
        value_padding=str(result.settings["value_padding"]),
        devices=place.devices,
        etp=settings.etp,
        **place._asdict(),
        sharding=settings.sharding,
        remat=settings.remat,
        status=verdict.status,
        required_bytes=verdict.required_bytes,
        usable_bytes=verdict.usable_bytes,
        headroom_bytes=verdict.headroom_bytes,
        sent_bytes=sent,
        sent_by_axis=by_axis,
        flops=_executed(flops),
        model_flops=sum(part.model or 0 for part in flops),
        idle=place.idle,
        alike=row["alike"] - 1,
        reason=verdict.reason,
    )


def _by_axis(sent: Communication) -> dict[str, int]:
    found: Counter[str] = Counter()
    for collective in sent.collectives:
        found[collective.axis] += collective.wire_bytes
    return dict(found)


def _executed(flops: Flops) -> int:
    return sum(part.executed or 0 for part in flops)
