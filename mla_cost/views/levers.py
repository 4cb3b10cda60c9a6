"""What each change of a plan would do, as a table for a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rich import box
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from mla_cost.results import Lever, Plan, Result
from mla_cost.views.parts import STYLES, items
from mla_cost.views.units import gib, signed

_REMAT = "Recomputation: what a micro-batch no longer keeps for backward, and what it keeps instead, in GiB."
WHAT = {
    "attention": "Changes of required memory and bytes sent in GiB, forward and backward; of flops and time in per "
    f"cent. {_REMAT}",
    "model": (
        "Changes of required memory on {} and of bytes sent in a step, in GiB; of flops in per cent (both "
        f"of the stage that has most), and of the time of a step. {_REMAT}"
    ),
}


def levers_table(plan: Plan) -> Iterator[RenderableType]:
    """A table for every verdict that has levers, with the smallest change that fits under it."""
    rows = [row for row in plan.results if row.verdict is not None and (row.verdict.levers or row.verdict.remedy)]
    if not rows:
        return
    yield Text("")
    stage = plan.inputs["stage"]
    where = "the worst stage" if stage is None else f"stage {stage}"
    yield Text(WHAT[plan.inputs["scope"]].format(where), style="dim")
    for row in rows:
        yield from _of(row, "" if stage is None else f", {where}")


def _of(row: Result, where: str) -> Iterator[RenderableType]:
    """where: the stage that they are of, if one was asked for."""
    verdict = row.verdict
    assert verdict is not None
    yield Text("")
    head = Text(f"Levers of {row.form} on {row.device}, kernel {row.kernel}{where}: ", style="bold")
    yield head.append(verdict.status, STYLES[verdict.status])
    yield _table(lever for lever in verdict.levers if not lever.reason)
    refused = [lever for lever in verdict.levers if lever.reason]
    if refused:
        yield Text("Refused")
        yield items((lever.change, lever.reason) for lever in refused)
    if verdict.remedy is not None:
        yield Text.assemble(("Smallest change that fits: ", "bold"), verdict.remedy)


def _table(levers: Iterable[Lever]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1, 0, 0))
    table.add_column("change", overflow="fold", min_width=16)
    for name in ("required", "sent", "flops", "time"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("then", no_wrap=True)
    for lever in levers:
        change = lever.change + (f" ({lever.ranks_factor} x the ranks)" if lever.ranks_factor > 1 else "")
        if lever.dropped_bytes is not None:
            change += f" (drops {gib(lever.dropped_bytes)}, keeps {gib(lever.kept_bytes)} instead)"
        cells = (
            signed(lever.required_delta_bytes or 0),
            signed(lever.sent_delta_bytes or 0),
            _share(lever),
            _time(lever),
        )
        table.add_row(change, *cells, Text(lever.status, STYLES[lever.status]))
    return table


def _time(lever: Lever) -> str:
    """The change of time in per cent."""
    if not lever.seconds_delta or not lever.seconds:
        return "-" if lever.seconds is None else "0"
    return f"{100 * lever.seconds_delta / (lever.seconds - lever.seconds_delta):+.1f} %"


def _share(lever: Lever) -> str:
    """The change of flops in per cent of what the plan runs."""
    if not lever.flops_delta or not lever.flops:
        return "0"
    return f"{100 * lever.flops_delta / (lever.flops - lever.flops_delta):+.0f} %"
