"""Sweeps and searches on executors of somebody else's: the same rows in the same order, whoever dies on the way."""

from __future__ import annotations

import os
import signal
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

import pytest

import mla_cost
from mla_cost.cli import main
from mla_cost.studies.sweep import output, sweep
from mla_cost.studies.sweep.grid import Grid
from mla_cost.studies.workers import in_order

ASKED: dict[str, Any] = {"model": "deepseek-v2-lite", "device": "h100-80gb", "scope": "attention", "form": "laga"}
OVER: dict[str, Any] = {"seq_len": "64..4096+64", "sp": [1, 2, 4], "micro_batch": [1, 2], "kernel": ["flash", "eager"]}


class Killing(Executor):
    """Two real processes; with the third task one of them is killed, as a machine that goes would be."""

    def __init__(self) -> None:
        self.pool = ProcessPoolExecutor(2, mp_context=get_context("fork"))
        self.handed = 0

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Hand out a task."""
        self.handed += 1
        if self.handed == 3:
            os.kill(next(iter(self.pool._processes)), signal.SIGKILL)
        return self.pool.submit(fn, *args, **kwargs)


class Here(Executor):
    """Everything at once, in this process; the first answer to each of two tasks is lost."""

    def __init__(self) -> None:
        self.lost = 2
        self.handed = 0

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Do a task."""
        self.handed += 1
        found: Future[Any] = Future()
        if self.lost:
            self.lost -= 1
            found.set_exception(ConnectionError("a worker went"))
        else:
            found.set_result(fn(*args, **kwargs))
        return found


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    monkeypatch.setattr("mla_cost.studies.sweep.grid.BOX", 128)
    monkeypatch.setattr("mla_cost.studies.sweep.grid.LEAST", 16)


def test_a_killed_worker_leaves_one_file_in_order(tmp_path):
    study = sweep(**ASKED, over=OVER)
    assert study.grid.num_boxes >= 8
    alone, others = tmp_path / "alone.csv", tmp_path / "others.csv"
    output.save(study, alone)
    killing = Killing()
    output.save(sweep(**ASKED, over=OVER, executor=killing), others)
    assert others.read_bytes() == alone.read_bytes()
    assert killing.handed >= 4
    assert not list(tmp_path.glob("*.resume*"))


def test_a_cut_file_is_continued_by_workers(tmp_path):
    study, path = sweep(**ASKED, over=OVER), tmp_path / "rows.csv"
    output.save(study, path)
    whole = path.read_bytes()
    stop = 3

    def progress(done: int) -> None:
        nonlocal stop
        stop -= done > 0
        if not stop:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        output.save(sweep(**ASKED, over=OVER, executor=Here()), path, progress=progress)
    assert 0 < path.stat().st_size < len(whole)
    output.save(sweep(**ASKED, over=OVER, executor=Here()), path, resume=True)
    assert path.read_bytes() == whole
    assert isinstance(study.grid, Grid)


def test_what_is_lost_is_handed_out_again_and_what_fails_is_told():
    here = Here()
    assert list(in_order(here, pow, [(2, at) for at in range(4)])) == [1, 2, 4, 8]
    assert here.handed == 6
    with pytest.raises(ZeroDivisionError):
        list(in_order(here, divmod, [(1, 0)]))


def test_a_search_ranks_the_same_on_an_executor():
    asked: dict[str, Any] = {
        "devices": 8,
        "global_batch": 16,
        "seq_len": 4096,
        "remat": "full",
        "sharding": "distributed",
    }
    asked |= {"form": "laga", "tp": 1, "ep": 8, "pp": 1, "micro_batch": 1}
    alone = mla_cost.search("deepseek-v2-lite", "h100-80gb", **asked)
    others = mla_cost.search("deepseek-v2-lite", "h100-80gb", **asked, executor=Here())
    assert others.to_dict() == alone.to_dict()


def test_what_is_no_executor_is_refused(capsys):
    with pytest.raises(mla_cost.InputError, match="cannot be handed work"):
        sweep(**ASKED, over={"sp": [1]}, executor=7)
    with pytest.raises(SystemExit) as ended:
        main("sweep --scope attention --over sp=1,2 --dask nonsense".split())  # noqa: SIM905  # as typed
    assert ended.value.code == 2
    assert "dask" in capsys.readouterr().err
