"""Cold starts of the command against `floor.py`, in pairs, so that a machine that slows down slows both.

Imports the standard library only: on Linux the peak of a child counts from what its parent held when it was started.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from tests.benchmarks.figure import Figure

PAIRS = 15
FLOOR = (sys.executable, str(Path(__file__).with_name("floor.py")))
COMMAND = str(Path(sys.executable).with_name("mla-cost"))
MAX_RSS_UNIT = 1 if sys.platform == "darwin" else 1024
MB = 1e6


@dataclass(frozen=True)
class Run:
    """One process: wall seconds and peak resident bytes."""

    seconds: float
    peak_bytes: int


def start(command: tuple[str, ...]) -> Run:
    """Runs `command` with nothing to read and nowhere to print, and waits for it."""
    silence = [(os.POSIX_SPAWN_OPEN, fd, os.devnull, os.O_RDWR, 0) for fd in (0, 1, 2)]
    began = time.perf_counter()
    pid = os.posix_spawn(command[0], command, os.environ, file_actions=silence)
    _, status, usage = os.wait4(pid, 0)
    seconds = time.perf_counter() - began
    if code := os.waitstatus_to_exitcode(status):
        raise RuntimeError(f"{' '.join(command)} ended with {code}: a command that fails is not measured")
    return Run(seconds, usage.ru_maxrss * MAX_RSS_UNIT)


def pairs(command: tuple[str, ...], floor: tuple[str, ...], count: int = PAIRS) -> list[tuple[Run, Run]]:
    """`count` runs of both in turn, after one of each that fills the file cache and writes byte code."""
    start(command), start(floor)
    return [(start(command), start(floor)) for _ in range(count)]


def figure(name: str, values: list[float], unit: str, budget: float | None = None) -> Figure:
    return Figure(name, statistics.median(values), min(values), max(values), unit, budget)


def measure() -> list[Figure]:
    plan = pairs((COMMAND, "plan", "--scope", "attention"), FLOOR)
    model = pairs((COMMAND, "plan", "deepseek-v3-2048-h800"), FLOOR)
    usage = pairs((COMMAND, "--help"), FLOOR)
    return [
        figure("cold plan, model / floor", [ours.seconds / floor.seconds for ours, floor in model], "x", 2.0),
        figure("cold plan, block / floor", [ours.seconds / floor.seconds for ours, floor in plan], "x", 1.5),
        figure("  peak memory", [ours.peak_bytes / MB for ours, _ in plan], "MB", 60),
        figure("--help / floor", [ours.seconds / floor.seconds for ours, floor in usage], "x", 1.2),
        figure("  the same", [ours.seconds for ours, _ in plan], "s"),
        figure("floor", [floor.seconds for _, floor in plan + model + usage], "s"),
        figure("floor, peak memory", [floor.peak_bytes / MB for _, floor in plan], "MB"),
    ]
