"""Times as a table: what was predicted and measured of every cell, errors, and the order of forms."""

from __future__ import annotations

from collections.abc import Iterator

from mla_cost.checks.validation.times import BARS, TimeReport


def show(report: TimeReport, *, notes: bool) -> None:
    """Print it."""
    from rich.console import Group

    from mla_cost.views import terminal
    from mla_cost.views.grid import TextGrid

    grid = TextGrid(("setting", "predicted", "band", "measured", "off"), left=("setting",))
    for cell in report.cells if notes else ():
        band = f"{cell.low * 1e3:.1f} to {cell.high * 1e3:.1f}"
        grid.add(
            cell.name, f"{cell.predicted * 1e3:.2f} ms", band, f"{cell.measured * 1e3:.2f} ms", f"{cell.error:+.1%}"
        )
    words = "\n".join(_words(report))
    terminal.show(Group(grid, "", words) if notes else Group(words))


def _words(report: TimeReport) -> Iterator[str]:
    yield (
        f"{len(report.cells)} settings that no micro-benchmark contains: median error {report.median:.1%}, worst "
        f"{report.worst:.1%}; the bars are {BARS[0]:.0%} and {BARS[1]:.0%}"
    )
    yield (
        f"order of two forms: {report.right} of {report.told} right; {report.close} too close to call, less than "
        f"{BARS[0]:.0%} apart"
    )
