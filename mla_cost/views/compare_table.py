"""Forms and schemes at one setting as a table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from rich.console import Group

from mla_cost.views import terminal
from mla_cost.views.grid import TextGrid
from mla_cost.views.times import duration
from mla_cost.views.units import sent

TIME: Final = (
    "time: forward and backward, every kernel and exchange after the other; what hides exchanges under attention, as "
    "rings do, takes less."
)
_COLUMNS: Final = 100  # of a pipe


def show(answer: Mapping[str, Any], *, refused: bool = False) -> None:
    """Print `Comparison.to_dict`. refused: also the combinations without a program, each with its reason."""
    asked = answer["inputs"]
    grouped = f", sp_inside {asked['sp_inside']}" if asked["sp_inside"] else ""
    head = (
        f"{asked['model']}: {asked['seq_len']:,} tokens x {asked['micro_batch']} over sp {asked['sp']}{grouped}, "
        f"tp {asked['tp']}, {asked['devices_per_node']} devices a node. One block, one rank, GiB."
    )
    timed = any(row["time"] for row in answer["results"])
    names = ("", "form", "scheme", "saved", "peak", "forward", "backward", "link", "busiest", *("time",) * timed)
    grid = TextGrid(names, left=("", "form", "scheme"))
    for row in answer["results"]:
        ways = ["/".join(sent(row[phase][where]) for where in ("inside", "between")) for phase in names[5:7]]
        words = ("*" if row["best"] else "", row["form"], row["scheme"])
        held = (sent(row["saved_bytes"]), sent(row["peak_bytes"]))
        times = [duration(row["time"]["seconds"]) if row["time"] else "-"] * timed
        grid.add(*words, *held, *ways, sent(row["busiest_link_bytes"]), f"{row['balance']:.2f}", *times)
    terminal.show(Group(head, grid, *_lines(answer, refused)), pipe=_COLUMNS)


def _lines(answer: Mapping[str, Any], refused: bool) -> list[str]:
    lines = (
        "*: no other keeps less, peaks lower, sends less and sends less between nodes.",
        "forward, backward: sent inside the node/between nodes, by the rank that sends most out. link: most to one",
        "other rank, both ways. busiest: attention of the busiest rank over the mean.",
        *(TIME,) * any(row["time"] for row in answer["results"]),
    )
    reported = [" ".join(lines), f"kernels: {_kernels(answer)}"]
    inferred = [f"{row['form']} {row['scheme']}" for row in answer["results"] if row["basis"] == "inferred"]
    reported += [f"inferred, not read in code: {', '.join(inferred)}"] * bool(inferred)
    count = len(answer["refused"])
    if refused:
        reported += [f"{row['form']} {row['scheme']}: {row['reason']}" for row in answer["refused"]]
    elif count:
        reported.append(f"{count} combinations have no program; --refused says why.")
    return reported


def _kernels(answer: Mapping[str, Any]) -> str:
    found: dict[str, list[str]] = {}
    for row in answer["results"]:
        forms = found.setdefault(row["kernel"], [])
        forms += [row["form"]] * (row["form"] not in forms)
    return "; ".join(f"{kernel} ({', '.join(forms)})" for kernel, forms in found.items())
