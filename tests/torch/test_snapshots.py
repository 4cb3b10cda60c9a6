"""Snapshots of the executor's runs in torch's format beside plans, and torch's own viewer on a predicted one."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any, NamedTuple

import pytest

torch = pytest.importorskip("torch")

from mla_cost.checks.reference.fake import run_fake  # noqa: E402  # needs torch
from mla_cost.checks.reference.spec import Spec  # noqa: E402  # needs torch
from mla_cost.inputs.config import validated  # noqa: E402  # after torch is known to be there
from mla_cost.inputs.settings import PlanSettings  # noqa: E402  # as above
from mla_cost.inputs.snapshots import read, write  # noqa: E402  # as above
from mla_cost.studies.snapshot import compare, write_timeline  # noqa: E402  # as above


class Ran(NamedTuple):
    action: str
    key: int
    bytes: int
    frames: tuple[str, ...]


def plan(form: str) -> PlanSettings:
    asked: dict[str, Any] = {"scope": "attention", "form": (form,), "kernel": "eager", "seq_len": 4096, "sp": 8}
    return validated(PlanSettings, {**asked, "device": ()})


@pytest.mark.parametrize("form", ["explicit", "laga"])
def test_a_run_matches_its_plan_storage_by_storage(form: str, tmp_path: Path) -> None:
    recording = run_fake(Spec(form=form, seq_len=4096))
    steps = [
        Ran(event.kind, event.storage, event.bytes, (str(recording.storages[event.storage]),))
        for event in recording.events
    ]
    path = tmp_path / "run.pickle"
    write(path, steps)
    found = compare(read(str(path)), plan(form))
    # dispatchers show the sum of two gradients as a storage of its own, and no recording holds parameters
    assert found.only_predicted == 1
    assert {name for each in found.groups if each.predicted > each.recorded for name in each.names} == {"weights"}
    assert found.only_recorded <= 2
    assert found.matched > 40


def test_torch_draws_a_predicted_timeline(tmp_path: Path) -> None:
    from torch.cuda import _memory_viz

    path = tmp_path / "predicted.pickle"
    write_timeline(plan("laga"), path)
    snapshot = pickle.loads(path.read_bytes())  # noqa: S301  # our own file, one line above
    for draw in (_memory_viz.trace_plot, _memory_viz.segment_plot):
        assert "<script" in draw(snapshot)
    assert "segments" in snapshot
    assert "cudaMalloc" in _memory_viz.trace(snapshot)
    assert _memory_viz.segsum(snapshot)
