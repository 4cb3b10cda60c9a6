"""A recorded snapshot beside a plan, as text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from mla_cost.views.units import readable

_SHOWN: Final = 10
_NAMES: Final = 3


def text(found: Mapping[str, Any]) -> str:
    """The lines of a comparison: its JSON object in, text out."""
    return "\n".join([*_lines(found), ""])


def _lines(found: Mapping[str, Any]) -> Iterator[str]:
    device = f" on {found['device']}" if found["device"] else ""
    yield f"{found['form']}{device}: recorded beside predicted"
    yield ""
    over = found["recorded_peak"] - found["predicted_peak"]
    before = readable(found["recorded_base"])
    yield f"  peak recorded    {readable(found['recorded_peak']):>12}  of it {before} from before"
    yield f"  peak predicted   {readable(found['predicted_peak']):>12}  recorded less predicted: {readable(over)}"
    yield f"  fragmentation    {readable(found['fragmentation']):>12}  reserved and not allocated at the end"
    yield ""
    yield f"{found['matched']} storages of 1 MiB and more are in both ({readable(found['matched_bytes'])});"
    yield f"{found['only_recorded']} only in the recording, {found['only_predicted']} only in the plan."
    small = f"{found['small_recorded']} recorded, {found['small_predicted']} predicted"
    yield f"Smaller ones, not matched: {small}."
    if not found["groups"]:
        return
    yield ""
    yield "Largest differences, by size:"
    for each in found["groups"][:_SHOWN]:
        counts = f"{each['recorded']} recorded, {each['predicted']} predicted"
        yield f"  {readable(each['delta'])}: {readable(each['bytes'])} x {counts}"
        if each["names"]:
            more = f" and {len(each['names']) - _NAMES} more" if len(each["names"]) > _NAMES else ""
            yield f"    predicted: {', '.join(each['names'][:_NAMES])}{more}"
        if each["frames"]:
            yield f"    recorded at: {' < '.join(each['frames'][:_NAMES])}"
    if len(found["groups"]) > _SHOWN:
        yield f"  and {len(found['groups']) - _SHOWN} more sizes (--format json lists all)"
