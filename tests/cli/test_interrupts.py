"""Ctrl-C and progress, on a pseudo terminal: an end within half a second, exit code 130, nothing left on the screen."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from typing import NamedTuple

import pytest

pty = pytest.importorskip("pty", reason="pseudo terminals are of POSIX")

SEARCH = ("search", "--model", "kimi-k2", "--device", "910b-64gb", "--devices", "256", "--global-batch", "1024")
FIT = ("fit", "--model", "kimi-k2", "--device", "910b-64gb", "--seq-len", "8192")
NOISE = (b"Traceback", b"Exception ignored", b"KeyboardInterrupt", b"BrokenProcessPool", b"Aborted")


BEGUN = "from mla_cost.cli import main; print('begun', flush=True); main()"
PROMPT = 3.0  # seconds on a machine that may be busy; quiet ones take 0.01 to 0.15


class Ended(NamedTuple):
    code: int
    seconds: float
    shown: bytes
    before: bytes  # the interrupt


def interrupted(arguments: tuple[str, ...], *, when: bytes, keyboard: bool, after: float = 0.0) -> Ended:
    """A command that is interrupted once it has shown something, or so many seconds later.

    keyboard: by the terminal, which asks every process of the group; else by a signal to the command alone.
    """
    child, terminal = pty.fork()
    if child == 0:
        os.execv(sys.executable, [sys.executable, "-c", BEGUN, *arguments])  # noqa: S606  (a program without a shell)
    shown, before, start, seen, sent = b"", b"", time.monotonic(), 0.0, 0.0
    while time.monotonic() - start < 90:
        if select.select([terminal], [], [], 0.02)[0]:
            try:
                shown += os.read(terminal, 65536)
            except OSError:  # the end of a pseudo terminal
                break
        if when in shown and not seen:
            seen = time.monotonic()
        if seen and not sent and time.monotonic() - seen >= after:
            sent, before = time.monotonic(), shown
            os.write(terminal, b"\x03") if keyboard else os.kill(child, signal.SIGINT)
    else:
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    os.close(terminal)
    return Ended(os.waitstatus_to_exitcode(status), time.monotonic() - sent, shown, before)


@pytest.mark.parametrize("keyboard", [True, False])
@pytest.mark.parametrize("arguments", [SEARCH, FIT])
def test_ctrl_c_ends_what_runs_at_once(arguments, keyboard):
    """Interrupted once the bar stands there, whose words say what is going on."""
    words = b"candidates" if arguments is SEARCH else b"layouts for"
    ended = interrupted(arguments, when=words, keyboard=keyboard)
    assert words in ended.before
    assert ended.code == 130
    assert ended.seconds < PROMPT
    assert not [noise for noise in NOISE if noise in ended.shown]
    assert ended.shown.endswith(b"\r\x1b[2K\x1b[?25h"), "the bar is gone and the cursor is back"


@pytest.mark.parametrize("after", [0.1, 0.4])
def test_an_early_ctrl_c_is_as_quiet(after):
    ended = interrupted(SEARCH, when=b"begun", keyboard=True, after=after)
    assert (ended.code, ended.seconds < PROMPT) == (130, True)
    assert not [noise for noise in NOISE if noise in ended.shown]


INTERRUPTED = """
import os, sys
stop = sys.argv.pop(1)
class Finder:
    def find_spec(name, path=None, target=None):
        if name == stop:
            os.kill(os.getpid(), 2)
sys.meta_path.insert(0, Finder)
from mla_cost.cli import main
main()
"""


@pytest.mark.parametrize("module", ["mla_cost.cli.interrupt", "mla_cost.cli.program", "typer", "mla_cost.api"])
def test_ctrl_c_during_an_import_is_as_quiet(checkout, module):
    run = [sys.executable, "-c", INTERRUPTED, module, "plan"]
    done = subprocess.run(run, cwd=checkout, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_nothing_slow_is_imported_before_ctrl_c_is_ours(checkout):
    """`-S`, since site-packages may hold files that import on their own."""
    code = "import sys, mla_cost.cli; print(sorted({'typing', 'enum', 'signal', 'threading'} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-S", "-c", code], cwd=checkout, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_a_quick_answer_shows_no_bar_and_a_pipe_none_at_all(capfd):
    from mla_cost.cli import progress

    with progress.shown("work") as watch:  # stderr is no terminal here
        watch("work", 1, 2)
        time.sleep(1.3)
    assert capfd.readouterr().err == ""
    ended = interrupted(("plans",), when=b"begun", after=60.0, keyboard=True)
    assert ended.code == 0
    assert b"\x1b[2K" not in ended.shown


def test_a_search_that_is_interrupted_in_python_leaves_no_process(monkeypatch):
    import mla_cost
    from mla_cost.batch import cores
    from mla_cost.studies.search import pool

    started: list[int] = []

    def stop(*_: object, **__: object) -> None:
        started.extend(cores.running)
        raise KeyboardInterrupt

    monkeypatch.setattr(pool, "available", lambda: 2)
    monkeypatch.setattr(pool, "MANY", 0)
    monkeypatch.setattr(cores, "wait", stop)
    with pytest.raises(KeyboardInterrupt):
        mla_cost.search("kimi-k2", "910b-64gb", devices=256, global_batch=1024, seq_len=8192)
    assert len(started) == 2
    assert not cores.running
    for worker in started:
        with pytest.raises(ProcessLookupError):
            os.kill(worker, 0)


def test_a_process_that_fails_leaves_its_work_to_this_one():
    from mla_cost.batch import cores

    def broken(number: int) -> int:
        if number == 3:
            raise ArithmeticError
        return number

    assert cores.answers(broken, 8, 2, lambda: None) is None
    assert cores.answers(lambda number: number**2, 8, 2, lambda: None) == [number**2 for number in range(8)]
    assert not cores.running
