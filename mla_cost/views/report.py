"""A plan on one page of HTML: no script, no network, and every word of a user's escaped (Jinja2, an extra)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from mla_cost.results import Formula, Lever, Plan, Result, plain
from mla_cost.views import chart, units
from mla_cost.views.memory import DrawnTimeline

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
    sent: list[tuple[str, int, int, int, int]]
    levers: tuple[Lever, ...]
    times: tuple[tuple[str, str], ...]
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
        times=tuple(_leaves(plain(result.time))),
        formulas=tuple(formulas),
    )


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Every single value of a record with its path in words: what is priced as time has a form of its own."""
    if isinstance(value, Mapping):
        for name, each in value.items():
            yield from _leaves(each, f"{path}, {name}" if path else str(name))
    elif isinstance(value, list | tuple):
        for number, each in enumerate(value):
            yield from _leaves(each, f"{path} {number}")
    elif value is not None:
        yield path.replace("_", " "), f"{value:,.6g}" if isinstance(value, float) else f"{value}"


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
