"""A sweep killed at any line that writes is continued to the same bytes, whatever stood there before."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

import mla_cost
from mla_cost.studies.sweep import grid, output
from mla_cost.studies.sweep.output import save
from tests.choosing import EXHAUSTIVE

SUFFIXES = (".csv", ".jsonl", ".parquet")
WRITERS = {"_save", "__init__", "write", "_noted", "finish", "_part", "_join", "drop"}


class KilledError(BaseException):
    """Stands for a signal that nothing catches."""


def small(monkeypatch):
    """Three chunks of a few rows, two to a part."""
    for name in ("BOX", "LEAST"):
        monkeypatch.setattr(grid, name, 4)
    monkeypatch.setattr(output, "PART_ROWS", 8)
    return mla_cost.sweep(
        over={"seq_len": range(4096, 4096 + 12 * 64, 64)}, form="laga", scope="attention", device="910b-64gb"
    )


def lines(study, path, stop=None):
    """The lines of writers that a save comes to; it is killed before line number `stop`."""
    seen = 0

    def step(_frame, event, _argument):
        nonlocal seen
        if event == "line":
            if seen == stop:
                raise KilledError
            seen += 1
        return step

    def enter(frame, _event, _argument):
        code = frame.f_code
        return step if code.co_filename == output.__file__ and code.co_name in WRITERS else None

    before = sys.gettrace()
    sys.settrace(enter)
    try:
        save(study, path)
    finally:
        sys.settrace(before)
    return seen


@pytest.mark.parametrize(("suffix", "there"), [*((suffix, False) for suffix in SUFFIXES), (".csv", True)])
def test_killed_at_any_line_that_writes(tmp_path, monkeypatch, suffix, there):
    if suffix == ".parquet":
        pytest.importorskip("pyarrow")
    study = small(monkeypatch)
    whole, cut = tmp_path / f"whole{suffix}", tmp_path / f"cut{suffix}"
    total = lines(study, whole)
    assert total > 30
    answered = save(study, tmp_path / f"whole{suffix}")
    for stop in range(total) if EXHAUSTIVE else range(len(suffix) % 3, total, 3):
        if there:
            cut.write_bytes(b"an older file")
        with pytest.raises(KilledError):
            lines(study, cut, stop)
        before = cut.read_bytes() if cut.exists() else b""
        if before == b"an older file" and not cut.with_name(cut.name + ".resume").exists():  # it had not begun
            with pytest.raises(mla_cost.InputError, match="nothing to resume"):
                save(study, cut, resume=True)
        else:
            assert save(study, cut, resume=True) == answered
            assert cut.read_bytes() == whole.read_bytes(), stop
        assert sorted(path.name for path in tmp_path.iterdir()) == sorted([whole.name, cut.name]), stop
        cut.unlink()


def test_a_terminal_that_stops_a_command_early_gets_no_traceback():
    script = (
        "import mla_cost.cli.program as program, mla_cost.cli as cli\n"
        "def stopped(arguments): raise KeyboardInterrupt\n"
        "program.build = stopped\n"
        "cli.main(['models'])"
    )
    inside = (
        "import mla_cost.inputs.plan_files as planfile, mla_cost.cli as cli\n"
        "def stopped(*_): raise KeyboardInterrupt\n"
        "planfile.assignments = stopped\n"
        "cli.main(['sweep', '--over', 'sp=1,2'])"
    )
    for text in (script, inside):
        done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout) == (128 + signal.SIGINT, "")
        assert done.stderr.strip() in {"", "mla-cost: stopped"}  # releases of typer differ in who hears of it
