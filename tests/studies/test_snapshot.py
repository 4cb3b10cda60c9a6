"""Memory snapshots: hostile files are refused, a predicted timeline comes back as it was written."""

from __future__ import annotations

import os
import pickle
import struct
from pathlib import Path
from typing import Any

import pytest

import mla_cost
from mla_cost.cli import main
from mla_cost.errors import InputError
from mla_cost.inputs.config import validated
from mla_cost.inputs.plain_pickle import loads
from mla_cost.inputs.settings import PlanSettings
from mla_cost.inputs.snapshots import read, recorded, rounded
from mla_cost.studies.snapshot import compare, write_timeline

BLOCK: dict[str, Any] = {
    "scope": "attention", "form": ("laga",), "kernel": "eager", "seq_len": 4096, "device": ("h100-80gb",), "sp": 8,
}  # fmt: skip


class Bad:
    def __reduce__(self) -> Any:
        return os.system, ("touch mla-cost-was-here",)


HOSTILE = {
    "a call": pickle.dumps(Bad()),
    "a call, protocol 0": pickle.dumps(Bad(), protocol=0),
    "a class": pickle.dumps({"a": Path("x")}),
    "a set": pickle.dumps({1, 2}),
    "bytes": pickle.dumps(b"x" * 10),
    "an extension": b"\x80\x02\x82\x01.",
    "a persistent object": b"\x80\x02K\x01Q.",
    "a memo as large as memory": b"\x80\x02]r\xff\xff\xff\xff.",  # refused or made small, never allocated
    "text longer than the file": b"\x80\x04\x8d" + struct.pack("<Q", 2**40) + b"abc",
    "cut": pickle.dumps([1, 2, 3])[:-4],
    "nothing": b"",
    "no pickle": b"hello",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_what_is_more_than_plain_values_is_refused(name: str, tmp_path: Path) -> None:
    file = tmp_path / "s.pickle"
    file.write_bytes(HOSTILE[name])
    with pytest.raises(InputError):
        read(str(file))
    assert not Path("mla-cost-was-here").exists()


def test_plain_values_come_back() -> None:
    value = {"a": [1, -2, 2**70, 1.5, None, True, "text", (1, (2, 3))], "b": {}}
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        assert loads(pickle.dumps(value, protocol=protocol), "x") == value


@pytest.mark.parametrize(
    "snapshot",
    [
        {"device_traces": 1, "segments": []},
        {"device_traces": [[{"action": "alloc", "addr": 1, "size": -5}]], "segments": []},
        {"device_traces": [[{"action": "alloc", "addr": "x", "size": 5}]], "segments": []},
        {"device_traces": [], "segments": [{"total_size": 2**70, "allocated_size": 0}]},
        [],
    ],
)
def test_what_is_no_snapshot_is_refused_by_its_field(snapshot: Any) -> None:
    with pytest.raises(InputError, match=r"device_traces|size|addr|total_size"):
        recorded(snapshot, "x.pickle")


def test_a_recording_is_read_from_before_its_beginning() -> None:
    """1,024 bytes lived before and are freed, 2,048 live throughout; 4,096 are made between."""
    alloc = {"action": "alloc", "addr": 10, "size": 4096, "frames": [{"filename": "a/b.py", "line": 3, "name": "f"}]}
    trace = [alloc, {"action": "free_completed", "addr": 5, "size": 1000}]
    found = recorded({"device_traces": [trace], "segments": [{"total_size": 10_000, "allocated_size": 6144}]}, "x")
    assert (found.base, found.peak, found.fragmentation) == (3072, 7168, 3856)
    assert found.storages[0].frames == ("b.py:3 f",)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("snapshots") / "predicted.pickle"
    write_timeline(validated(PlanSettings, BLOCK), path)
    return path


def test_a_predicted_timeline_comes_back_as_it_was_written(written: Path) -> None:
    found = compare(read(str(written)), validated(PlanSettings, BLOCK))
    assert (found.only_recorded, found.only_predicted, found.groups) == (0, 0, ())
    assert found.matched > 40
    peak = mla_cost.plan(**BLOCK).results[0].memory.allocated_peak_bytes
    assert found.predicted_peak == peak
    storages = found.small_recorded + found.matched
    assert 0 <= found.recorded_peak - peak < 512 * storages  # each storage rounded to the allocator's step


def test_another_form_differs_by_name(written: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = compare(read(str(written)), validated(PlanSettings, {**BLOCK, "form": ("explicit",)}))
    assert other.only_recorded > 0
    assert other.only_predicted > 0
    assert any("latent and k rope" in each.frames[0] for each in other.groups if each.frames)
    assert sum(each.delta for each in other.groups) == sum(
        (each.recorded - each.predicted) * rounded(each.bytes) for each in other.groups
    )
    flags = ["--scope", "attention", "--form", "explicit", "--kernel", "eager", "--seq-len", "4k", "--sp", "8"]
    with pytest.raises(SystemExit) as ended:
        main(["snapshot", str(written), *flags, "--device", "h100-80gb"])
    assert ended.value.code == 0
    told = capsys.readouterr().out
    assert "Largest differences, by size:" in told
    assert "fragmentation" in told


def test_a_stage_is_written_too(tmp_path: Path) -> None:
    plan = mla_cost.plan_file("deepseek-v2-lite-8-a100") | {"form": ("explicit",)}
    path = tmp_path / "stage.pickle"
    write_timeline(validated(PlanSettings, plan), path)
    found = compare(read(str(path)), validated(PlanSettings, plan))
    assert found.groups == ()
    # layers in a row hold what one hands to the next twice, and are no smaller than the plan's peak
    assert 1 <= found.recorded_peak / found.predicted_peak < 1.05
