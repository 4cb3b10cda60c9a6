"""A picture of verdicts: sequence against ranks, one panel per form and device (matplotlib, an extra)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from textwrap import fill
from typing import Any, Final, NamedTuple

from mla_cost.views.drawing import save

# Okabe and Ito's palette, told apart by everybody; without colour, hatches and white numbers say the same
# status: colour, hatch and the hatch's colour
LOOK: Final = {
    "fits": ("#56B4E9", "", "#56B4E9"),
    "tight": ("#F0E442", "...", "#B5AB1E"),
    "oom": ("#D55E00", "", "#D55E00"),
    "unsupported": ("#CC79A7", "//", "#B35F8E"),
    "illegal": ("#E4E4E4", "\\\\", "#C8C8C8"),
    "none": ("#FFFFFF", "", "#FFFFFF"),
}
WORDS: Final = {
    "fits": "fits",
    "tight": "fits, under 5 % left",
    "oom": "out of memory",
    "unsupported": "no kernel trains it",
    "illegal": "no such program",
    "none": "no device named",
}
DARK: Final = {"oom"}
MOST_NUMBERS: Final = 16
MOST_GIB: Final = 9999


class Panel(NamedTuple):
    """One picture of a form on a device. status, gib: [sp][seq_len]; gib None where there is no number."""

    form: str
    device: str
    status: Sequence[Sequence[str]]
    gib: Sequence[Sequence[float | None]]


def draw(path: Path, title: str, seq_lens: Sequence[int], sps: Sequence[int], panels: Sequence[Panel]) -> None:
    """Write the picture as the file's name says (.png or .svg). The numbers in the cells are GiB required."""
    from matplotlib.figure import Figure

    devices = list(dict.fromkeys(panel.device for panel in panels))
    forms = list(dict.fromkeys(panel.form for panel in panels))
    width, height = max(3.2, 0.62 * len(seq_lens) + 0.9), max(2.2, 0.42 * len(sps) + 1.1)
    figure = Figure(figsize=(width * len(forms) + 0.6, height * len(devices) + 1.3), layout="constrained", dpi=150)
    axes = figure.subplots(len(devices), len(forms), squeeze=False, sharex=True, sharey=True)
    for panel in panels:
        row, column = devices.index(panel.device), forms.index(panel.form)
        _panel(axes[row][column], panel, seq_lens, sps, several=len(devices) > 1)
        if row == len(devices) - 1:
            axes[row][column].set_xlabel("sequence length (tokens)")
        if column == 0:
            axes[row][column].set_ylabel("ranks that share it (sp)")
    figure.suptitle(fill(title, int(figure.get_figwidth() * 11)), fontsize=11)
    _legend(figure, panels)
    save(figure, path)


def _panel(axes: Any, panel: Panel, seq_lens: Sequence[int], sps: Sequence[int], several: bool) -> None:
    from matplotlib.patches import Rectangle

    numbers = len(seq_lens) <= MOST_NUMBERS and len(sps) <= MOST_NUMBERS
    for y, row in enumerate(panel.status):
        for x, status in enumerate(row):
            colour, hatch, lines = LOOK[status]
            axes.add_patch(
                Rectangle((x - 0.48, y - 0.47), 0.96, 0.94, facecolor=colour, hatch=hatch, edgecolor=lines, linewidth=0)
            )
            if numbers:
                _number(axes, x, y, panel.gib[y][x], status)
    axes.set_xlim(-0.5, len(seq_lens) - 0.5)
    axes.set_ylim(-0.5, len(sps) - 0.5)
    axes.set_title(f"{panel.form}, {panel.device}" if several else panel.form, fontsize=10)
    _ticks(axes.xaxis, [tokens(length) for length in seq_lens])
    _ticks(axes.yaxis, [str(ranks) for ranks in sps])
    axes.tick_params(length=0, labelsize=8)
    for side in axes.spines.values():
        side.set_visible(False)


def _number(axes: Any, x: int, y: int, amount: float | None, status: str) -> None:
    if amount is not None:
        text = f"{amount:.1f}" if amount < 9.95 else f"{amount:,.0f}" if amount < MOST_GIB else f">{MOST_GIB:,}"
        colour = "#FFFFFF" if status in DARK else "#000000"
        back = {"facecolor": LOOK[status][0], "edgecolor": "none", "pad": 1.2} if LOOK[status][1] else None
        axes.text(x, y, text, ha="center", va="center", fontsize=7, color=colour, bbox=back)


def _ticks(axis: Any, labels: Sequence[str]) -> None:
    step = max(1, len(labels) // 12)
    places = range(0, len(labels), step)
    axis.set_ticks(list(places), [labels[place] for place in places])


def tokens(length: int) -> str:
    """A sequence length as people say it: 4k, 1M; in full where it is no round number."""
    for power, unit in ((20, "M"), (10, "k")):
        if length % (1 << power) == 0:
            return f"{length >> power}{unit}"
    return f"{length:,}"


def _legend(figure: Any, panels: Sequence[Panel]) -> None:
    from matplotlib.patches import Patch

    present = {status for panel in panels for row in panel.status for status in row}
    handles = [
        Patch(facecolor=colour, hatch=hatch, edgecolor=lines, linewidth=0, label=WORDS[status])
        for status, (colour, hatch, lines) in LOOK.items()
        if status in present
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), frameon=False, fontsize=8)
