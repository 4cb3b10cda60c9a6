"""An out-of-memory error beside a plan, as text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from mla_cost.views.units import readable

_SHOWN: Final = 8


def text(found: Mapping[str, Any]) -> str:
    """The lines of a postmortem: its JSON object in, text out."""
    return "\n".join([*_lines(found), ""])


def _lines(found: Mapping[str, Any]) -> Iterator[str]:
    error = found["error"]
    short, free = found["short_bytes"], readable(error["free"])
    missing = f"{readable(short)} more than was free" if short else f"{free} was free, in no piece of that size"
    yield f"Tried to allocate {readable(error['tried'])} on {found['device']}; {missing}"
    yield ""
    width = max(map(len, found["parts"]))
    for name, amount in found["parts"].items():
        yield f"  {name:<{width}}  {readable(amount):>12}"
    yield f"  {'total':<{width}}  {readable(error['total']):>12}"
    yield ""
    yield f"The plan counts {readable(found['planned_bytes'])} at its peak ({found['form']})."
    if found["uncounted_bytes"]:
        more = readable(found["uncounted_bytes"])
        yield f"The run needed {more} more than that: it is not in the plan, or the run is not this plan."
    yield ""
    yield from _tensors(found)
    yield ""
    if found["change"] is None:
        yield "No single change of the plan would have fitted: `mla-cost search` goes over several at once."
    else:
        yield f"Smallest change that would have fitted: {found['change']}"
        if found["command"]:
            yield found["command"]


def _tensors(found: Mapping[str, Any]) -> Iterator[str]:
    tried, asked = readable(found["error"]["tried"]), found["asked"]
    if not asked:
        yield f"No tensor of the plan has {tried}; the nearest in size:"
        yield from (_tensor(each) for each in found["near"])
        yield "So something else was allocated then: a buffer of a library, or a run that is not this plan."
        return
    groups: dict[tuple[Any, ...], dict[str, Any]] = {}
    for each in asked:
        groups.setdefault((each["where"], each["name"], each["phase"], each["op"]), each)
    yield f"Tensors of the plan that take {tried}, in the order in which they are made:"
    yield from (_tensor(each) for each in list(groups.values())[:_SHOWN])
    if len(groups) > _SHOWN:
        yield f"  and {len(groups) - _SHOWN} more (--format json lists all)"


def _tensor(each: Mapping[str, Any]) -> str:
    dims = f" [{each['dims']}]" if each["dims"] else ""
    when = each["op"] if each["phase"] == "start" else f"{each['phase']} of {each['op']}"
    kept = ", kept for backward" * each["saved"]
    return f"  {each['where']}: {each['name']}{dims}, {readable(each['bytes'])}, {when}{kept}"
