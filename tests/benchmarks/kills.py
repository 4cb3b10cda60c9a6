"""A sweep killed at moments drawn at random is continued to the same bytes: `python -m tests.benchmarks.kills 200`."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

SUFFIXES = (".csv", ".jsonl", ".parquet")
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGKILL)
DONE = "done before"
SWEEP = (
    *("sweep", "--scope", "attention", "--over", "seq_len=4096..135168+64", "--over", "sp=1,2,4,8,16"),
    *("--over", "form=all", "--device", "910b-64gb"),
)


def command(path: Path, *more: str) -> subprocess.Popen[bytes]:
    """Start the sweep of about 30,000 rows that writes `path`."""
    arguments = [sys.executable, "-m", "mla_cost", *SWEEP, "--output", str(path), *more]
    return subprocess.Popen(arguments, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def finished(path: Path, *more: str) -> bytes:
    """Let the sweep end, and return what it wrote."""
    process = command(path, *more)
    _, errors = process.communicate()
    if process.returncode:
        raise SystemExit(f"{path.name} {' '.join(more)} ended with {process.returncode}:\n{errors.decode()}")
    return path.read_bytes()


def killed(path: Path, sent: signal.Signals, after: float) -> str:
    """Kill a sweep so many seconds after its start; how it ended. A traceback is a fault of its own."""
    process = command(path)
    time.sleep(after)
    process.send_signal(sent)
    _, errors = process.communicate()
    if b"Traceback" in errors:
        raise SystemExit(f"{sent.name} after {after:.2f} s shows a traceback:\n{errors.decode()}")
    return DONE if process.returncode == 0 else sent.name


def main(kills: int) -> None:
    """Kill, continue and compare; ends with 1 at the first difference."""
    draw, ends = random.Random(0), Counter[str]()  # noqa: S311  (draws of a test)
    with tempfile.TemporaryDirectory() as folder:
        whole: dict[str, bytes] = {}
        start = time.perf_counter()
        for suffix in SUFFIXES:
            whole[suffix] = finished(Path(folder) / f"whole{suffix}")
        longest = (time.perf_counter() - start) / len(SUFFIXES)
        for kill in range(kills):
            suffix, sent = SUFFIXES[kill % 3], SIGNALS[kill // 3 % 3]
            path, after = Path(folder) / f"{kill}{suffix}", draw.uniform(0, longest)
            end = killed(path, sent, after)
            ends[f"{suffix} {end}"] += 1
            if finished(path, "--resume") != whole[suffix]:
                raise SystemExit(f"{suffix} killed by {sent.name} after {after:.2f} s ends with other bytes")
    for end, times in sorted(ends.items()):
        print(f"{times:5d} {end}")
    print(f"{kills} kills, each continued to the same bytes; a whole sweep took {longest:.1f} s")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 200)
