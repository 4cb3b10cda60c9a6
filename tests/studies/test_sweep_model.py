"""Sweeps of the model scope: rows are plans, files and verbs as at the attention scope."""

from __future__ import annotations

import csv
import io
import json
from typing import Any

import numpy as np
import pytest

import mla_cost
from mla_cost.batch import codes
from mla_cost.batch.composed import require_equal
from mla_cost.cli import main
from mla_cost.results.columns import plan_columns, plan_rows
from mla_cost.studies.sweep.frontier import kernels_of
from mla_cost.studies.sweep.output import save
from mla_cost.studies.sweep.stages import Stages

BASE: dict[str, Any] = {"scope": "model", "device": "h100-80gb"}
DEGREES = {"sp": [1, 8], "tp": [1, 8], "pp": [1, 61], "ep": [8, 64], "dp": [64]}


def rows_of(study):
    return [study[index] for index in range(len(study))]


def main_ok(arguments):
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 0


def test_a_row_is_a_plan():
    over = {"sp": [1, 3], "tp": [1, 8], "ep": [8], "dp": [64], "remat": ["none", "full"], "form": "all"}
    study = mla_cost.sweep(over=over, **BASE, micro_batches=4, other_memory="1GiB")
    for row in rows_of(study):
        asked = {name: row[name] for name in over}
        plan = mla_cost.plan(**asked, **BASE, micro_batches=4, other_memory="1GiB")
        (reported,) = plan_rows(plan)
        assert {name: reported[name] for name in row} == row


def test_every_point_of_a_grid_is_checked_against_plan():
    over = {**DEGREES, "seq_len": [4096, 5000], "sharding": ["ddp", "zero2"], "micro_batches": [1, 30]}
    study = mla_cost.sweep(over=over, form="laga", model="deepseek-v3", **BASE)
    found = study.to_numpy(workers=1)
    for index in range(0, len(study), 3):
        require_equal(index, {name: column[index] for name, column in found.items()}, study.scope.expected(index))


def test_models_dims_and_devices_are_axes():
    over = {"model": "deepseek-v2*", "device": "910b-64gb,h100-80gb", "dims.heads": [16, 64], "dp": [1, 8]}
    study = mla_cost.sweep(over=over, scope="model", form="explicit")
    assert len(study) == 3 * 2 * 2 * 2
    for index, row in enumerate(rows_of(study)):
        dims = {"heads": row["dims.heads"]}
        plan = mla_cost.plan(row["model"], row["device"], form="explicit", scope="model", dims=dims, dp=row["dp"])
        (reported,) = plan_rows(plan)
        assert {name: reported[name] for name in plan_columns("model")[17:]} == {
            name: row[name] for name in plan_columns("model")[17:]
        }, index


def test_facts_are_settings_and_axes():
    asked: dict[str, Any] = {
        "model": "glm-5",
        "form": "explicit",
        "scope": "model",
        "device": "h100-80gb",
        "ep": 8,
        "tp": 8,
    }
    study = mla_cost.sweep(over={"facts.indexer_layer_bytes": [0, 10**9], "dp": [8]}, **asked)
    for row in rows_of(study):
        facts = {"indexer_layer_bytes": row["facts.indexer_layer_bytes"]}
        (reported,) = plan_rows(mla_cost.plan(**asked, dp=8, facts=facts))
        assert {name: reported.get(name, row[name]) for name in row} == row
    fixed = mla_cost.sweep(over={"dp": [8]}, **asked, facts={"indexer_layer_bytes": 10**9})
    assert fixed[0]["required_bytes"] == study[1]["required_bytes"] > study[0]["required_bytes"]


def test_a_stage_can_be_asked_for():
    study = mla_cost.sweep(over={"stage": [None, 0, 60, 61], "pp": [61], "dp": [64], "ep": [8]}, form="laga", **BASE)
    rows = rows_of(study)
    assert [row["worst_stage"] for row in rows[1:3]] == [0, 60]
    assert rows[0]["required_bytes"] >= max(row["required_bytes"] for row in rows[1:3])
    assert (rows[3]["status"], "no such stage" in rows[3]["reason"]) == ("illegal", True)


def test_a_kernel_is_chosen_for_each_device():
    study = mla_cost.sweep(over={"dp": [8], "form": "all"}, scope="model", device=["910b-64gb", "h100-80gb"])
    for row in rows_of(study):
        plan = mla_cost.plan(form=row["form"], device=row["device"], scope="model", dp=8)
        assert row["kernel"] == plan.results[0].kernel
    named = mla_cost.sweep(over={"kernel": ["auto", "eager"], "dp": [8]}, scope="model", device="910b-64gb")
    assert len({row["kernel"] for row in rows_of(named)}) > 1


def told_by_plan(asked):
    """The status and the reason of a refusal; what a plan does not take at all is a row of a grid too."""
    try:
        verdict = mla_cost.plan(**asked, **BASE).results[0].verdict
    except mla_cost.InputError as error:
        return "illegal", str(error)
    assert verdict is not None
    return verdict.status, verdict.reason if verdict.status in {"illegal", "unsupported"} else ""


def test_refusals_are_rows_with_the_reasons_of_plan():
    over = {"sp": [1, 3], "ep": [1, 7], "pp": [1, 2], "virtual_stages": [1, 2], "remat": ["none", "layernorm"]}
    study = mla_cost.sweep(over={**over, "sharding": ["distributed", "zero2"], "form": "absorbed"}, **BASE)
    seen = set()
    for row in rows_of(study):
        asked = {name: row[name] for name in (*over, "sharding", "form")}
        assert (row["status"], row["reason"]) == told_by_plan(asked), asked
        seen.add(row["reason"])
    assert len(seen) > 3


def test_without_a_device_and_unsupported():
    row = mla_cost.sweep(device=None, over={"dp": [8]}, scope="model")[0]
    assert row["device"] == row["status"] == "none"
    assert row["usable_bytes"] is row["headroom_bytes"] is None
    row = mla_cost.sweep(over={"dp": [8]}, scope="model", device="910b-64gb", form="absorbed", kernel="mem-efficient")[
        0
    ]
    assert row["status"] == "unsupported"
    assert row["required_bytes"] > 0
    assert "mem-efficient" in row["reason"]


def test_what_reaches_the_exact_limit_is_refused_as_a_plan_refuses_it():
    over = {"seq_len": [4096, 2**30], "micro_batches": [1, 2**20], "dp": [8]}
    study = mla_cost.sweep(over=over, scope="model", device=None, form="explicit", sp=8)
    found = study.to_numpy()
    assert found["reason"].tolist() == [0, codes.TOO_LARGE, codes.TOO_LARGE, codes.TOO_LARGE]
    assert (found["required_bytes"][1:] == codes.MISSING).all()
    assert "2^53" in study[1]["reason"]
    degrees: Any = {"sp": 8, "dp": 8, "micro_batches": 2**20}
    plan = mla_cost.plan(form="explicit", device="h100-80gb", scope="model", seq_len=4096, **degrees)
    verdict = plan.results[0].verdict
    assert verdict is not None
    assert verdict.status == "illegal"
    assert "2^53" in verdict.reason


def test_both_cores_give_the_same(monkeypatch):
    monkeypatch.setattr(Stages, "fork_from", 0)
    study = mla_cost.sweep(over={**DEGREES, "form": "all"}, **BASE)
    one, two = study.to_numpy(workers=1), study.to_numpy(workers=2)
    assert all((one[name] == two[name]).all() for name in one)
    assert two["peak_bytes"].base is not None  # memory that processes share


def test_parts_add_up():
    study = mla_cost.sweep(over={**DEGREES, "micro_batches": [1, 8], "profile": "reference,megatron"}, **BASE)
    found = study.to_numpy()
    legal = found["status"] != codes.ILLEGAL
    found = {name: column[legal] for name, column in found.items()}
    assert legal.any()
    parts = ("state_bytes", "standing_bytes", "kept_bytes", "working_bytes")
    assert (np.sum([found[name] for name in parts], axis=0) == found["allocated_peak_bytes"]).all()
    axes = [name for name in found if name.startswith("wire_") and name != "wire_bytes"]
    assert (np.sum([found[name] for name in axes], axis=0) == found["wire_bytes"]).all()
    assert (found["flops_executed"] >= found["flops_model"]).all()
    assert (found["worst_stage"] >= 0).all()


def test_best_and_pareto():
    study = mla_cost.sweep(over={**DEGREES, "form": "all", "remat": ["none", "full"]}, **BASE)
    rows = [row for row in rows_of(study) if row["status"] == "fits"]
    best = study.best(by="flops_executed", where={"status": "fits"})
    assert best["flops_executed"] == min(row["flops_executed"] for row in rows)
    front = study.pareto("required_bytes", "wire_dp_bytes", where={"status": "fits"})
    assert front[0]["required_bytes"] == min(row["required_bytes"] for row in rows)


def test_tables_of_other_libraries():
    study = mla_cost.sweep(over={"sp": [3, 8], "dp": [8], "form": "all"}, **BASE)
    rows = rows_of(study)
    pandas = pytest.importorskip("pandas")
    frame = study.to_pandas()
    for name in ("saved_bytes", "flops_model"):
        assert [None if pandas.isna(value) else int(value) for value in frame[name]] == [row[name] for row in rows]
    pytest.importorskip("polars")
    assert study.to_polars().to_dicts() == rows
    pytest.importorskip("pyarrow")
    assert study.to_arrow().to_pylist() == rows


def test_a_cut_file_is_continued(tmp_path):
    over = {"seq_len": range(4096, 4096 + 64 * 30, 64), "sp": [1, 2, 3], "remat": ["none", "full"]}
    study = mla_cost.sweep(over=over, form="laga", dp=64, **BASE)
    whole, cut = tmp_path / "whole.csv", tmp_path / "cut.csv"
    save(study, whole)

    def stop(done):
        if done:
            raise InterruptedError

    with pytest.raises(mla_cost.InputError):
        save(study, cut, progress=stop)
    save(study, cut, resume=True)
    assert cut.read_bytes() == whole.read_bytes()
    with whole.open(encoding="utf-8") as file:
        reported = list(csv.DictReader(file))
    for at in range(0, len(study), 17):
        row, line = study[at], reported[at]
        assert line == {name: "" if value is None else str(value) for name, value in row.items()}


def test_an_axis_of_none_and_numbers_keeps_both():
    study = mla_cost.sweep(over={"first_layers": [None, 4], "pp": [4], "last_layers": [0, 3]}, **BASE)
    assert study.names["first_layers"] == ("null", "4")
    assert {row["last_layers"] for row in rows_of(study)} == {0, 3}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"over": {"layers": [1]}}, ["layers", "model"]),
        ({"over": {"dp": [8]}, "layers": 2}, ["layers"]),
        ({"over": {"scope": ["model"]}}, ["scope"]),
        ({"over": {"dp": [0]}}, ["dp", "at least 1"]),
        ({"over": {"ep": [1.5]}}, ["ep", "whole number"]),
        ({"over": {"sharding": ["zero3"]}}, ["sharding", "zero2"]),
        ({"over": {"reserve.nothing": [1]}}, ["nothing"]),
        ({"over": {"kernel": "flsh"}}, ["flash"]),
    ],
)
def test_bad_input_is_told(arguments, words):
    with pytest.raises(mla_cost.InputError) as error:
        mla_cost.sweep(**BASE, **arguments)
    assert all(word in str(error.value) for word in words), error.value


def test_attention_scope_names_what_it_does_not_vary():
    with pytest.raises(mla_cost.InputError, match="attention scope"):
        mla_cost.sweep(scope="attention", over={"dp": [8]})


# ---- the command


def test_the_command_and_a_plan_print_the_same(capsys):
    degrees = ["--tp", "8", "--ep", "8", "--dp", "64"]
    main_ok(["plan", "--scope", "model", "--device", "h100-80gb", *degrees, "--format", "csv"])
    planned = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    over = ["--over", "tp=8", "--over", "ep=8", "--over", "dp=64"]
    main_ok(["sweep", "--scope", "model", "--device", "h100-80gb", *over, "--format", "csv"])
    swept = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [{name: row[name] for name in swept[0]} for row in planned] == swept


def test_a_plan_file_of_the_model_scope(tmp_path, capsys):
    text = "model: deepseek-v2-lite\ndevice: h100-80gb\nform: [laga]\nscope: model\ndp: 8\n"
    (tmp_path / "plan.yaml").write_text(text)
    arguments = ["sweep", str(tmp_path / "plan.yaml"), "--over", "seq_len=4096..16384*2", "--over", "pp=1,27"]
    main_ok([*arguments, "--format", "json"])
    reported = json.loads(capsys.readouterr().out)["rows"]
    assert len(reported) == 6
    assert all(isinstance(row["flops_model"], int) for row in reported)
    main_ok(arguments)
    printed = capsys.readouterr().out
    assert "one optimizer step" in printed
    assert max(map(len, printed.splitlines())) <= 80


def test_a_picture(tmp_path):
    pytest.importorskip("matplotlib")
    path = tmp_path / "frontier.svg"
    flags = ["--scope", "model", "--device", "h100-80gb", "--set", "dp=64", "--set", "ep=64", "--set", "tp=8"]
    main_ok(["sweep", *flags, "--over", "seq_len=4096..65536*2", "--over", "sp=1,8", "--plot", str(path)])
    assert "the whole model" in path.read_text() or path.stat().st_size > 5000


def test_no_row_with_an_answer_ends_with_2(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["sweep", "--scope", "model", "--over", "pp=64", "--form", "laga"])
    assert ended.value.code == 2
    assert "61 layers do not split" in capsys.readouterr().err


def test_points_are_numbers_of_the_right_kind():
    study = mla_cost.sweep(over={"dp": [8, 64]}, **BASE)
    found = study.to_numpy()
    assert {found[name].dtype for name in ("required_bytes", "wire_ep_bytes", "worst_stage")} == {np.dtype(np.int64)}
    assert found["flops_model"].dtype == np.float64


def test_a_picture_names_every_kernel_of_its_panels():
    over = {"seq_len": [2048], "sp": [1], "form": "explicit,absorbed"}
    study = mla_cost.sweep("deepseek-v2-lite", "a100-80gb", over=over, ep=8, dp=8)
    assert sorted(kernels_of(study)) == ["flash", "mem-efficient"]


def test_sent_is_of_the_stage_that_sends_most_in_a_sweep_a_plan_and_a_search_alike():
    asked: dict[str, Any] = {"model": "deepseek-v2-lite", "form": "explicit", "device": "h100-80gb", "ep": 8, "dp": 16}
    asked |= {"micro_batches": 4, "seq_len": 4096, "sharding": "zero1", "scope": "model", "pp": 4}
    study = mla_cost.sweep(over={"stage": [None, 0, 3]}, **asked)
    rows = [study[at] for at in range(len(study))]
    (row,) = mla_cost.plan(**asked).results
    sent = [stage.sent_bytes for stage in row.memory.stages or ()]
    assert [each["sent_bytes"] for each in rows] == [max(sent)] * 3 == [sent[1]] * 3
    assert [each["wire_bytes"] for each in rows] == [sent[0], sent[0], sent[3]]  # of the stage that the row is about
    assert study.to_numpy(workers=1)["sent_bytes"].tolist() == [max(sent)] * 3
    axes: dict[str, Any] = {
        "tp": [1],
        "sp": [1],
        "pp": [4],
        "ep": [8],
        "micro_batch": [1],
        "sharding": ["zero1"],
        "remat": ["none"],
    }
    found = mla_cost.search(
        "deepseek-v2-lite",
        "h100-80gb",
        devices=64,
        global_batch=64,
        seq_len=4096,
        form="explicit",
        max_idle=100,
        **axes,
    )
    assert found.results[0].sent_bytes == max(sent)
