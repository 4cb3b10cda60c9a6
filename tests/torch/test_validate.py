"""`mla-cost validate`: the quick grid once, what it reports, records of devices, and bad input."""

from __future__ import annotations

import importlib.util
import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from mla_cost.checks.validate import INSTALL, validate
from mla_cost.cli import main
from mla_cost.declared.kernels import KERNELS
from mla_cost.errors import InputError

pytest.importorskip("torch")

from mla_cost.checks.reference.spec import DIMS, Spec
from mla_cost.checks.validation import cells
from mla_cost.checks.validation.device import check_records
from mla_cost.checks.validation.fake import check_cell, fused_flops
from mla_cost.checks.validation.predict import predicted_stack
from mla_cost.checks.validation.report import CheckRow, Report
from tests.choosing import EXHAUSTIVE

Captured = pytest.CaptureFixture[str]


@pytest.mark.skipif(not EXHAUSTIVE, reason="real ranks take 12 s; `make test` runs validate by itself")
@pytest.mark.xdist_group("ranks")
def test_the_quick_grid_agrees(monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    """`make test` runs the default grid beside the tests, which holds these cells."""
    fused = next(each for each in cells.fake_cells("default") if each.layers > 1 and KERNELS[each.kernel].fused)
    every = cells.fake_cells("quick")
    monkeypatch.setattr(cells, "fake_cells", lambda _: [fused, *every])
    with pytest.raises(SystemExit) as stop:
        main(["validate", "--quick", "--ranks", "2", "--format", "json"])
    answer = json.loads(capsys.readouterr().out)
    wrong = [row for row in answer["rows"] if row["status"] == "disagrees"]
    assert wrong == []
    assert stop.value.code == 0
    assert answer["schema"] == "mla-cost/validate/1"
    assert set(answer["rows"][0]) == {"check", "cell", "status", "detail"}
    assert sum(answer["counts"].values()) == len(answer["rows"])
    assert {"saved storages", "timeline", "allocated peak", "ranks agree", "bit-identical"} <= {
        row["check"] for row in answer["rows"]
    }
    stated = {row["check"] for row in answer["rows"] if row["status"] == "by construction"}
    memory = {"saved storages", "live-byte peak", "timeline"}
    others = {"stack: saved", "stack: peak", "pipeline: kept", "pipeline: peak"}
    assert stated == memory | others | {f"layer: {check}" for check in memory}


# ---- the grids


def test_the_default_grid_holds_what_was_promised() -> None:
    default = cells.fake_cells("default")
    assert {spec.dims for spec in default} >= set(cells.MODELS.values())
    assert max(spec.seq_len for spec in default) == 131072
    real = [spec for spec in default if spec.dims in cells.MODELS.values()]
    assert {1, 64} <= {spec.sp for spec in real}
    assert any(spec.sp == spec.dims.heads for spec in real)
    for name, values in (("norm", {"fused", "composite"}), ("attention_layout", {"sbnd", "bsht", "bnsd"})):
        assert {getattr(spec, name) for spec in default} == values
    assert len(set(default)) == len(default)
    assert set(cells.fake_cells("quick")) < set(default)


def test_the_default_grid_shows_every_two_values_that_the_full_one_has_together() -> None:
    every = {pair for group in cells.groups() for spec in group for pair in cells.pairs_of(spec)}
    assert every == {pair for spec in cells.fake_cells("default") for pair in cells.pairs_of(spec)}
    assert {(s.form, s.scheme, s.kernel) for group in cells.groups() for s in group} == {
        (s.form, s.scheme, s.kernel) for s in cells.fake_cells("default")
    }
    allocated = {pair for spec in cells.allocator_cells("full") for pair in cells.pairs_of(spec)}
    assert allocated == {pair for spec in cells.allocator_cells("default") for pair in cells.pairs_of(spec)}


def test_the_full_grid_is_a_cross_product() -> None:
    crossed = list(cells._crossed())
    for form, scheme in cells.pairings():
        own = [spec for spec in crossed if (spec.form, spec.scheme) == (form, scheme) and spec.kernel == "eager"]
        assert len(own) == len(set(own)) == 2 * 4 * 3 * 2 * 2 * 2 * 2 * 3


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        # 2 b l S S (192 + 128) forward; (3 * 192 + 2 * 128) backward
        (Spec(kernel="flash", seq_len=4096, sp=8), (2 * 16 * 4096**2 * 320, 2 * 16 * 4096**2 * 832)),
        (Spec(kernel="flash", seq_len=64, sp=1, value_padding="qk"), (2 * 128 * 64**2 * 384, 2 * 128 * 64**2 * 960)),
        (
            Spec(form="absorbed", kernel="mem-efficient", seq_len=64, sp=2),
            (2 * 64 * 64**2 * 1088, 2 * 64 * 64**2 * 2752),
        ),
        (
            Spec(scheme="kv-gather", kernel="flash", seq_len=64, sp=2),
            (2 * 128 * 32 * 64 * 320, 2 * 128 * 32 * 64 * 832),
        ),
    ],
)
def test_fused_flops_literally(spec: Spec, expected: tuple[int, int]) -> None:
    assert fused_flops(spec) == expected


def test_what_a_stand_in_states_is_by_construction() -> None:
    rows = {row.check: row.status for row in check_cell(Spec(kernel="flash", dims=DIMS["tiny"], seq_len=16, sp=2))}
    assert rows["saved storages"] == rows["timeline"] == "by construction"
    assert rows["collectives"] == rows["parameters"] == rows["fused flops"] == "agrees"


# ---- reports


def test_a_disagreement_ends_with_one(monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    row = CheckRow("timeline", "a cell", "disagrees", "event 3: model +1, executor +2")
    monkeypatch.setattr("mla_cost.checks.validate.validate", lambda *_: Report((row,)))
    with pytest.raises(SystemExit) as stop:
        main(["validate", "--quick"])
    assert stop.value.code == 1
    out = capsys.readouterr().out
    assert "event 3: model +1, executor +2" in out
    assert "\x1b" not in out


def test_without_torch_one_line_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr("mla_cost.checks.validate.find_spec", lambda name: None if name == "torch" else find(name))
    with pytest.raises(SystemExit) as stop:
        main(["validate"])
    assert stop.value.code == 2
    assert capsys.readouterr().err == f"mla-cost: {INSTALL}\n"
    assert 'python3 -m pip install ".[reference]"' in INSTALL


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--quick", "--full"], "choose one"),
        (["--ranks", "3"], "--ranks"),
        (["--format", "xml"], "--format"),
        (["--compare", "missing.jsonl"], "cannot be read"),
    ],
)
def test_bad_input(arguments: list[str], message: str, capsys: Captured) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["validate", *arguments])
    assert stop.value.code == 2
    assert message in capsys.readouterr().err


# ---- records of real devices

CELL = Spec(form="absorbed", kernel="eager", seq_len=4096, sp=1, mask="tensor")


def record(requested: int = 0, kind: str = "cuda", **figures: Any) -> dict[str, Any]:
    """A record as a device would write it, by arithmetic typed here: so much more was requested than predicted."""
    it = predicted_stack(CELL, "cuda")
    library = 8 << 20
    tables = 2 * 4096 * 64 * 2 + 4096 * 4096 + 2 * 4
    held = it.parameter_bytes + 4096 * 7168 * 2 + 2 * 4096 * 64 * 2 + 4096 * 4096 + 2 * 512 + library
    peak = it.allocated_peak_bytes + tables + library + requested
    usual = {"held_bytes": held, "requested_bytes_peak": peak, "max_memory_allocated": peak + 4096, "seconds": 1.0}
    return {
        "schema": "mla-cost/device-record/1",
        "device": {"type": kind, "name": "a device"},
        "versions": {"cuda": "12.8"},
        "spec": asdict(CELL),
        "figures": usual | figures,
    }


def written(tmp_path: Path, *records: Any) -> Path:
    file = tmp_path / "runs.jsonl"
    file.write_text("".join(json.dumps(entry) + "\n" for entry in records))
    return file


def test_a_record_that_agrees_lists_rounding_and_workspace(tmp_path: Path) -> None:
    (row,) = check_records(written(tmp_path, record()))
    assert row.status == "agrees"
    assert "library workspace 8,388,608 B, allocator rounding 4,096 B" in row.detail


def test_one_byte_more_disagrees(tmp_path: Path) -> None:
    (row,) = check_records(written(tmp_path, record(requested=1)))
    assert row.status == "disagrees"
    assert "(+1 B)" in row.detail


def test_a_device_without_a_peak_is_no_evidence(tmp_path: Path) -> None:
    nothing: Any = {"held_bytes": None, "requested_bytes_peak": None, "max_memory_allocated": None}
    (row,) = check_records(written(tmp_path, record(kind="cpu", **nothing)))
    assert row.status == "by construction"


@pytest.mark.parametrize(
    "entry",
    [[], 3, {}, {"schema": "other/1"}, record() | {"figures": {}}, record() | {"spec": {"form": "diagonal"}}],
    ids=["list", "number", "empty", "schema", "figures", "spec"],
)
def test_a_line_that_is_no_record_is_named(entry: Any, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="line 2: no record of a device"):
        list(check_records(written(tmp_path, record(), entry)))


def test_what_the_runner_writes_is_read(tmp_path: Path) -> None:
    from mla_cost.checks.reference.device import main as measure

    file = tmp_path / "runs.jsonl"
    measure(["--model", "tiny", "--seq-len", "16", "--steps", "1", "--output", str(file)])
    assert len(validate(records=file).rows) == 1


def test_the_composite_norm_matters_off_cuda_only(tmp_path: Path) -> None:
    entry = record()
    entry["spec"] = asdict(replace(CELL, norm="composite"))
    (row,) = check_records(written(tmp_path, entry))
    assert row.status == "agrees"


def test_progress_goes_to_a_terminal_only(monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    from mla_cost.cli.validate import _progress

    for terminal in (False, True):
        monkeypatch.setattr("sys.stderr.isatty", lambda here=terminal: here)
        with _progress() as watch:
            for left in (0, 2, 1):
                watch("fake tensors", left)
        reported = capsys.readouterr()
        assert reported.out == ""
        assert bool(reported.err) is terminal
