"""Of the layouts that fit on the fewest devices, the one that trains most tokens a second."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from mla_cost.pricing import rows
from mla_cost.results import Seconds, Time
from mla_cost.studies.longest.fewest import Layout
from mla_cost.studies.longest.needs import FitQuestion


class Fastest(NamedTuple):
    """layouts: how many there are to choose from. too_close: others that the ceilings' band could put first."""

    layout: Layout
    time: Time
    layouts: int
    too_close: int


def fastest(question: FitQuestion, layouts: Iterable[Layout], watch: Callable[[int], None]) -> Fastest | None:
    """The fastest of some layouts by what `plan` says of each; None where the device's file has no ceilings."""
    told: list[tuple[float, Layout, Time]] = []
    for done, layout in enumerate(layouts):
        watch(done)
        asked = layout.of(question.settings).model_copy(update={"form": (question.form,)})
        (row,) = rows.rows(question.model, question.device, asked)
        if row.time is not None and row.time.tokens_per_second is not None:
            told.append((row.time.tokens_per_second, layout, row.time))
    if not told:
        return None
    _, layout, time = max(told, key=lambda each: each[0])
    near = sum(time.too_close(_at_rate_of(other, time)) for _, one, other in told if one is not layout)
    return Fastest(layout, time, len(told), near)


def _at_rate_of(other: Time, first: Time) -> Time:
    """A step of another length, as long as it would take for as many tokens as the first one's."""
    assert first.tokens_per_second is not None
    assert other.tokens_per_second is not None
    tokens = first.tokens_per_second * first.total.seconds
    share = tokens / (other.tokens_per_second * other.total.seconds)
    total = Seconds(*(share * seconds for seconds in other.total))
    return other._replace(total=total, parts=tuple(part._replace(seconds=share * part.seconds) for part in other.parts))
