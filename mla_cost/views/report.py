"""A plan on one page of HTML: no script, no network, and every word of a user's escaped (Jinja2, an extra)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from mla_cost.results import Formula, Lever, Plan, Result, Seconds, Time
from mla_cost.views import chart, units
from mla_cost.views.memory import DrawnTimeline
from mla_cost.views.times import band, duration

MOST_LEVERS: Final = 12
_COUNTS: Final = ("seq_len", "micro_batch", "micro_batches")
_DEGREES: Final = ("tp", "sp", "pp", "ep", "etp", "dp")


class Written(NamedTuple):
    """A formula and the same in MathML, as `explain` has them."""

    formula: Formula
    mathml: str


class Told(NamedTuple):
    """All that a report tells of one result, in the order in which it is read."""

    result: Result
    name: str
    anchor: str
    stages: chart.Chart | None
    timelines: tuple[chart.Chart, ...]
    sent: list[chart.AxisSent]
    levers: tuple[Lever, ...]
    times: tuple[tuple[str, str, str], ...]
    parts: tuple[tuple[str, str, str, float], ...]
    formulas: tuple[Written, ...]


def report(
    plan: Plan,
    command: str,
    timelines: Mapping[tuple[str | None, str], Sequence[DrawnTimeline]],
    formulas: Mapping[tuple[str | None, str], Sequence[Written]],
) -> str:
    """The page. command: the one that prints the same plan. timelines, formulas: by device and form of a result."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    page = Environment(
        loader=PackageLoader("mla_cost.views", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    page.filters.update(gib=units.gib, sent=units.sent, signed=units.signed, count="{:,}".format)
    told = [
        _told(result, at, timelines.get(_key(result), ()), formulas.get(_key(result), ()))
        for at, result in enumerate(plan.results)
    ]
    return page.get_template("report.html").render(
        inputs=plan.inputs,
        asked=_asked(plan.inputs),
        changed=_changed(plan.inputs),
        command=command,
        told=told,
        WIDTH=chart.WIDTH,
    )


def _key(result: Result) -> tuple[str | None, str]:
    return result.device, result.form


def _told(result: Result, at: int, timelines: Sequence[DrawnTimeline], formulas: Sequence[Written]) -> Told:
    levers = result.verdict.levers if result.verdict is not None else ()
    return Told(
        result=result,
        name=f"{result.form} on {result.device}" if result.device else result.form,
        anchor=f"r{at}",
        stages=chart.stages(result) if result.memory.stages else None,
        timelines=tuple(map(chart.timeline, timelines)),
        sent=chart.axes_sent(result.communication),
        levers=levers[:MOST_LEVERS],
        times=tuple(_times(result.time)),
        parts=tuple(_parts(result.time)),
        formulas=tuple(formulas),
    )


def _times(time: Time | None) -> Iterator[tuple[str, str, str]]:
    """What a step, or forward and backward, take: the figure, its band, and what it is."""
    if time is None:
        return
    for name in ("total", "forward", "backward"):
        seconds: Seconds = getattr(time, name)
        yield name, duration(seconds.seconds), band(seconds)
    if time.tokens_per_second is not None:
        yield (
            "tokens per second",
            f"{time.tokens_per_second:,.0f}",
            f"{time.tokens_per_second_per_device:,.0f} a device",
        )
    if time.model_flops_utilisation is not None:
        yield "model flops utilisation", f"{time.model_flops_utilisation:.1%}", ""
    for axis, exposed in time.exposed.items():
        yield f"exchanges over {axis} that nothing hides", duration(exposed), ""
    for axis, hidden in ((axis, seconds) for axis, seconds in time.hidden.items() if seconds):
        yield f"exchanges over {axis} under other work", duration(hidden), ""
    if time.days is not None:
        yield "the training, days", f"{time.days:,.1f}", f"{time.device_hours or 0:,.0f} device-hours"
    if time.price is not None:
        yield "the training, price", f"{time.price:,.0f}", ""


def _parts(time: Time | None) -> Iterator[tuple[str, str, str, float]]:
    """Where the time goes, most first: what it is, how long, what sets it, and its share in per cent."""
    parts = sorted(time.parts, key=lambda part: -part.seconds) if time is not None else ()
    every = sum(part.seconds for part in parts) or 1.0
    for part in parts:
        if part.seconds > 0:
            yield part.name, duration(part.seconds), part.limit, round(100 * part.seconds / every, 1)


def _asked(inputs: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What is priced, in words and numbers."""
    whole = inputs["scope"] == "model"
    found = [("scope", "the whole model" if whole else _blocks(inputs["layers"]))]
    names = (*_COUNTS, *_DEGREES) if whole else (*_COUNTS[:2], "sp")
    found += [(name.replace("_", " "), f"{inputs[name]:,}") for name in names]
    return [*found, *((name, str(inputs[name])) for name in ("dtype", "remat", "profile"))]


def _blocks(count: int) -> str:
    return "one attention block" if count == 1 else f"{count} attention blocks"


def _changed(inputs: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [(name, str(value)) for name, value in inputs["changed"].items()]
