"""Sweeps: equal to the int evaluator to the byte, lazy, sized, refusals as rows, files that resume, bounded memory."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys
import tracemalloc
from functools import partial
from typing import Any

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

import mla_cost
from mla_cost.batch import codes, matrices, programs
from mla_cost.batch.blocks import BlockAsked, compiled
from mla_cost.batch.matrices import fold
from mla_cost.cli import main
from mla_cost.language.evaluate import EXACT_LIMIT
from mla_cost.results.columns import plan_rows
from mla_cost.studies.sweep import price
from mla_cost.studies.sweep.attention import AttentionSweep
from mla_cost.studies.sweep.output import save

DEVICES = ("910b-64gb", "a100-80gb", "h100-80gb", "mi300x")
BASE: dict[str, Any] = {"device": "910b-64gb"}
# one block, as all of this file; tests/studies/test_sweep_model.py is about whole models
sweep, plan = (
    partial(mla_cost.sweep, scope="attention", kernel="eager"),
    partial(mla_cost.plan, scope="attention", kernel="eager"),
)
SWEEP = ["sweep", "--scope", "attention", "--kernel", "eager"]


def differing(study, found):
    """Every point at which a sweep and the int evaluator differ."""
    points = range(len(study))
    return [
        index
        for index in points
        if study.scope.expected(index) != {name: int(found[name][index]) for name in study.scope.expected(index)}
    ]


def some(values, most=3):
    return st.lists(st.sampled_from(values), min_size=1, max_size=most, unique=True)


GRIDS = st.fixed_dictionaries(
    {
        "form": some(["explicit", "absorbed", "laga"], 1),
        "kernel": some(["eager", "eager-bmm", "flash", "mem-efficient", "npu-fusion"], 1),
        "seq_len": some([2, 8, 24, 100, 4096, 16384, 2**20, 2**30]),
        "sp": some([1, 2, 3, 8, 24, 64]),
    },
    optional={
        "micro_batch": some([1, 2, 5], 2),
        "layers": some([1, 2, 3, 61, 4096], 2),
        "dims.heads": some([1, 8, 24, 128], 2),
        "dims.q_lora_rank": some([None, 1, 1536], 2),
        "dims.qk_rope_head_dim": some([0, 2, 64], 2),
        "dims.v_head_dim": some([1, 64, 128, 192, 256], 2),
        "dims.qk_nope_head_dim": some([1, 64, 128], 1),
        "dims.kv_lora_rank": some([1, 512], 1),
        "scheme": some([None, "ulysses", "latent-gather", "kv-gather"], 1),
        "value_padding": some([None, "none", "qk"], 1),
        "v_layout": some(["view", "contiguous"], 1),
        "attention_layout": some(["sbnd", "bsht", "bnsd"], 1),
        "dtype": some(["bf16", "fp32"], 1),
        "softmax_dtype": some(["activation", "fp32"], 1),
        "norm": some(["fused", "composite"], 1),
        "mask": some(["none", "tensor"], 1),
        "remat": some(["none", "full"], 1),
        "model": some(["deepseek-v3", "deepseek-v2-lite", "minicpm3-4b"], 2),
        "device": some([*DEVICES, "none"], 3),
    },
)


@hypothesis.settings(max_examples=20)
@hypothesis.given(grid=GRIDS, data=st.data())
def test_equal_to_the_int_evaluator_to_the_byte(grid, data):
    study = sweep(over=grid, **BASE)
    found = study.to_numpy(workers=1)
    for index in data.draw(st.lists(st.integers(0, len(study) - 1), min_size=1, max_size=12)):
        wanted = study.scope.expected(index)
        assert {name: int(found[name][index]) for name in wanted} == wanted, study[index]


def test_bytes_sent_in_both_directions_may_reach_2_to_53_together():
    block: dict[str, Any] = {"form": "explicit", "kernel": "mem-efficient", "seq_len": 2**30, "micro_batch": 5}
    dims = {"q_lora_rank": 1, "qk_rope_head_dim": 2}
    study = sweep(device=None, over={"sp": [8]}, layers=61, dims=dims, **block)
    (result,) = plan(device=None, sp=8, layers=61, dims=dims, **block).results
    traffic = result.communication
    sent = (traffic.forward.wire_bytes or 0) + (traffic.backward.wire_bytes or 0)
    assert sent > 2**53
    assert study[0]["wire_bytes"] == study.scope.expected(0)["wire_bytes"] == sent


def test_every_point_of_a_grid_with_all_structures():
    over = {"seq_len": [8, 4096], "sp": [1, 3, 8], "dims.heads": [8, 128], "layers": [1, 2, 5], "kernel": "all"}
    study = sweep(over=over, **BASE)
    assert differing(study, study.to_numpy()) == []


def test_a_row_is_a_plan():
    over = {
        "seq_len": [4096, 8192],
        "sp": [1, 8],
        "form": "all",
        "remat": ["none", "full"],
        "kernel": ["eager", "flash"],
    }
    study = sweep(over=over, device="a100-80gb", layers=3)
    for index, row in enumerate(study[at] for at in range(len(study))):
        asked = {name: row[name] for name in over}
        answer = plan(**asked, device="a100-80gb", layers=3)
        (reported,) = plan_rows(answer)
        assert {name: reported.get(name, row["remat"]) for name in row} == row, index


# ---- exactness


def fixed_values(**varying):
    known = {"P": 8, "s": 2048, "b": 1, "l": 16, "h": 7168, "d_q": 1536, "d_c": 512, "k": 128, "r": 64, "v": 128}
    return {**known, "P_others": 7, "r_half": 32, "u": 2048, "more_layers": 3, "fused_workspace": 0, **varying}


def test_which_arithmetic_is_used_and_that_it_is_exact(monkeypatch):
    """Double precision, and only because every coefficient is whole and not negative."""
    seen = []
    product = matrices.multiplied

    def watched(coefficients, monomials):
        seen.append((coefficients, np.array(monomials)))
        return np.array(product(coefficients, monomials))

    monkeypatch.setattr(matrices, "multiplied", watched)
    sweep(over={"seq_len": range(4096, 2**20, 4096), "layers": [1, 60]}, **BASE).to_numpy(workers=1)
    assert seen
    for coefficients, monomials in seen:
        assert coefficients.dtype == monomials.dtype == np.float64
        assert (coefficients >= 0).all()
        assert (coefficients == np.floor(coefficients)).all()
        whole = coefficients.astype(object) @ monomials.astype(object)  # Python's ints
        computed = product(coefficients, monomials)
        below = (whole < EXACT_LIMIT).astype(bool)
        assert (computed.astype(object)[below] == whole[below]).all()
        assert (computed[~below] >= EXACT_LIMIT).all()


@hypothesis.given(
    coefficients=st.lists(st.integers(0, 2**20), min_size=4, max_size=4),
    values=st.lists(st.integers(0, 2**34), min_size=4, max_size=4),
)
def test_the_exact_limit_is_one_comparison(coefficients, values):
    """Sums of products of whole numbers are exact below 2^53 and never seem to be below it when they are not."""
    true = sum(a * b for a, b in zip(coefficients, values, strict=True))
    found = matrices.multiplied(np.array([coefficients], float), np.array(values, float)[:, None])[0, 0]
    assert (found < EXACT_LIMIT) == (true < EXACT_LIMIT)
    if true < EXACT_LIMIT:
        assert int(found) == true


def test_the_exact_limit_refuses_and_does_not_wrap():
    study = sweep(over={"seq_len": [4096, 2**26, 2**30], "sp": [1, 2**7], "form": "all"}, **BASE)
    found = study.to_numpy()
    refused = found["reason"] == codes.TOO_LARGE
    assert refused.any()
    assert (found["status"][refused] == codes.ILLEGAL).all()
    assert (found["peak_bytes"][refused] == codes.MISSING).all()
    assert (found["peak_bytes"][~refused] < EXACT_LIMIT).all()
    assert "2^53" in study[int(np.flatnonzero(refused)[0])]["reason"]


def test_moments_are_dropped_only_where_others_reach_them():
    from mla_cost.inputs import catalog
    from mla_cost.inputs.settings import PlanSettings
    from mla_cost.pricing.resolve import resolve

    point = resolve(catalog.model("deepseek-v3"), "absorbed", PlanSettings())
    program = compiled(BlockAsked(point.key, (frozenset(),), stacked=False))
    values = fixed_values()
    full = np.array([np.prod([values[s] for s in m] or [1.0]) for m in program.monomials])
    folded = fold(program.monomials, program.parts, values)
    assert folded.monomials == ((),)
    assert folded.matrix[folded.spans[1]].max() == (program.parts[1].matrix @ full).max()


def test_a_disagreement_is_an_error(monkeypatch):
    top = matrices.top
    monkeypatch.setattr(programs, "top", lambda moments: top(moments) + 2)
    with pytest.raises(ArithmeticError, match="plan"):
        sweep(over={"seq_len": [4096]}, **BASE).to_numpy()


# ---- what it is


def test_lazy_and_sized(monkeypatch):
    def never(*_):
        raise AssertionError("priced before it was asked for")

    monkeypatch.setattr(price.BoxPricer, "figures", never)
    over = {"dims.heads": range(1, 513), "seq_len": range(4096, 1_000_000), "sp": range(1, 65), "form": "all"}
    study = sweep(over=over)
    assert len(study) == 512 * 995_904 * 64 * 3 * 2
    assert "sp (64)" in repr(study)
    assert study.names["form"] == ("explicit", "absorbed", "laga")


def test_both_cores_give_the_same(monkeypatch):
    monkeypatch.setattr(AttentionSweep, "fork_from", 0)
    over = {"seq_len": range(4096, 4096 + 64 * 512, 64), "sp": [1, 2, 4, 8, 16], "dims.heads": [64, 128], "form": "all"}
    study = sweep(over=over)
    one, two = study.to_numpy(workers=1), study.to_numpy(workers=2)
    assert one.keys() == two.keys()
    assert all((one[name] == two[name]).all() for name in one)
    assert two["peak_bytes"].base is not None  # memory that processes share


def test_what_fails_in_a_process_is_raised_here(monkeypatch):
    def fail(*_):
        raise ZeroDivisionError

    monkeypatch.setattr(AttentionSweep, "fork_from", 0)
    monkeypatch.setattr(price.BoxPricer, "figures", fail)
    study = sweep(over={"seq_len": range(4096, 4096 + 64 * 512, 64), "sp": [1, 2], "form": "all"}, **BASE)
    with pytest.raises(ZeroDivisionError):
        study.to_numpy(workers=2)


def test_chunks_are_the_table_and_start_anywhere():
    over = {"seq_len": range(4096, 4096 + 64 * 2048, 64), "sp": [1, 2, 4, 8, 16], "form": "all"}
    study = sweep(over=over)
    full = study.to_numpy()
    chunks = list(study.chunks())
    assert len(chunks) > 2
    for name, column in full.items():
        assert (np.concatenate([chunk.columns[name] for chunk in chunks]) == column).all()
    later = next(study.chunks(start=chunks[2].start))
    assert later.start == chunks[2].start
    assert (later.columns["peak_bytes"] == chunks[2].columns["peak_bytes"]).all()


def test_globs_and_ranges():
    study = sweep(over={"model": "deepseek-v2*", "device": "910b*,h100-80gb", "sp": "2..16*2", "form": "l*"})
    assert study.names["model"] == ("deepseek-v2", "deepseek-v2-lite", "deepseek-v2.5")
    assert "910b2-64gb" in study.names["device"]
    assert "h100-80gb" in study.names["device"]
    assert sorted(set(study.to_numpy()["sp"].tolist())) == [2, 4, 8, 16]
    assert len(sweep(model="kimi-*", device="*", over={"sp": [8]}).names["model"]) > 3
    assert [row["seq_len"] for row in map(sweep(over={"seq_len": "10..30+10"}).row, (0, 2, 4))] == [10, 20, 30]


def test_refusals_are_rows_with_the_reasons_of_plan():
    over = {"sp": [3, 8], "kernel": ["eager", "flash"], "form": "all"}
    study = sweep(over=over, **BASE)
    rows = [study[index] for index in range(len(study))]
    assert len(rows) == 12
    for row in rows:
        verdict = plan(sp=row["sp"], kernel=row["kernel"], form=row["form"], **BASE).results[0].verdict
        assert verdict is not None
        assert row["status"] == verdict.status
        assert row["reason"] == (verdict.reason if row["status"] in {"illegal", "unsupported"} else "")
        assert (row["saved_bytes"] is None) == (row["status"] == "illegal")


def test_without_a_device_there_is_no_verdict():
    row = sweep(device=None, over={"sp": [8]})[0]
    assert row["device"] == row["status"] == "none"
    assert row["usable_bytes"] is None
    assert row["required_bytes"] == row["allocated_peak_bytes"]


def test_best_and_pareto():
    over = {"seq_len": [16384, 32768], "sp": [8, 16, 32], "form": "all"}
    study = sweep(over=over, **BASE)
    rows = [study[index] for index in range(len(study))]
    fits = [row for row in rows if row["status"] == "fits"]
    assert study.best(by="required_bytes", where={"status": "fits"}) == min(fits, key=lambda r: r["required_bytes"])
    assert study.best(by="-seq_len", where={"status": ("fits", "tight")})["seq_len"] == 32768
    assert study.best(where=lambda columns: columns["sp"] == 32)["sp"] == 32
    assert study.best(where={"form": "nothing"}) is None
    assert [row["seq_len"] for row in study.best(by="sp", where={"status": "fits"}, per="seq_len")] == [16384, 32768]
    front = study.pareto("required_bytes", "wire_bytes", where={"seq_len": 16384})
    mine = [row for row in rows if row["seq_len"] == 16384]
    better = [
        row
        for row in mine
        if not any(
            other["required_bytes"] <= row["required_bytes"]
            and other["wire_bytes"] <= row["wire_bytes"]
            and (other["required_bytes"], other["wire_bytes"]) != (row["required_bytes"], row["wire_bytes"])
            for other in mine
        )
    ]
    assert front == sorted(better, key=lambda r: r["required_bytes"])


def test_tables_of_other_libraries():
    study = sweep(over={"sp": [3, 8], "dtype": ["bf16", "fp32"], "form": "all"}, **BASE)
    rows = [study[index] for index in range(len(study))]
    pandas = pytest.importorskip("pandas")
    frame = study.to_pandas()
    assert list(frame.columns) == list(study.columns)
    assert [None if pandas.isna(value) else int(value) for value in frame["saved_bytes"]] == [
        row["saved_bytes"] for row in rows
    ]
    assert list(frame["reason"]) == [row["reason"] for row in rows]
    pytest.importorskip("polars")
    assert study.to_polars().to_dicts() == rows
    pytest.importorskip("pyarrow")
    assert study.to_arrow().to_pylist() == rows


def test_a_missing_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "polars", None)
    with pytest.raises(mla_cost.InputError, match=r'pip install "\.\[polars\]"'):
        sweep(over={"sp": [8]}, **BASE).to_polars()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"over": {"sq": [1]}}, ["sq", "sp"]),
        ({"over": {"heads": [1]}}, ["dims.heads"]),
        ({"over": {"dims.heads": [0]}}, ["dims.heads", "at least 1"]),
        ({"over": {"seq_len": [1.5]}}, ["seq_len", "whole number"]),
        ({"over": {"seq_len": [True]}}, ["seq_len", "whole number"]),
        ({"over": {"seq_len": "8..4+1"}}, ["no range"]),
        ({"over": {"seq_len": "8..64*1"}}, ["no range"]),
        ({"over": {"seq_len": "1..4000000000+1"}}, ["at most 10,000,000"]),
        ({"over": {"sp": []}}, ["at least one value"]),
        ({"over": {"sp": [0]}}, ["sp", "at least 1"]),
        ({"over": {"tp": [2]}}, ["tp", "belongs to scope model"]),
        ({"over": {"device": "z*"}}, ["no device matches"]),
        ({"over": {"model": "deepsek-v3"}}, ["deepseek-v3"]),
        ({"over": {"dtype": ["int8"]}}, ["dtype", "bf16"]),
        ({"over": {"kernel": "flsh"}}, ["flash"]),
        ({"over": {"reserve.nothing": [1]}}, ["nothing"]),
        ({"over": {"sp": [8]}, "scope": "modle"}, ["scope", "model"]),
        ({"over": {"sp": [8]}, "tp": 2}, ["tp", "belongs to scope model"]),
        ({"over": [1]}, ["mapping"]),
    ],
)
def test_bad_input_is_told(arguments, words):
    with pytest.raises(mla_cost.InputError) as error:
        sweep(**arguments)
    assert all(word in str(error.value) for word in words), error.value


def test_bad_questions_are_told():
    study = sweep(over={"sp": [8]}, **BASE)
    with pytest.raises(mla_cost.InputError, match="wire_bytes"):
        study.best(by="wire_byte")
    with pytest.raises(mla_cost.InputError, match="no column"):
        study.pareto("required_bytes", "nothing")


# ---- files


def test_memory_is_bounded_whatever_the_grid():
    def peak(count):
        study = sweep(over={"seq_len": range(4096, 4096 + 8 * count, 8), "sp": [1, 2, 4, 8]}, form="laga")
        tracemalloc.start()
        try:
            assert sum(len(chunk.columns["required_bytes"]) for chunk in study.chunks()) == len(study)
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    small, large = peak(10_000), peak(100_000)  # 80,000 and 800,000 points
    assert large < 1.5 * small + 8e6


@pytest.fixture
def study():
    return sweep(over={"seq_len": range(4096, 4096 + 16 * 2500, 16), "sp": [1, 2, 3, 8], "form": "all"}, **BASE)


class CutError(Exception):
    """Stands for a machine that stops."""


def cut_after(points):
    def progress(done):
        if done >= points:
            raise CutError

    return progress


@pytest.mark.parametrize("suffix", [".csv", ".jsonl"])
def test_a_cut_file_is_continued(tmp_path, study, suffix):
    whole, cut = tmp_path / f"whole{suffix}", tmp_path / f"cut{suffix}"
    save(study, whole)
    with pytest.raises(CutError):
        save(study, cut, progress=cut_after(12_000))
    with cut.open("ab") as file:
        file.write(b"half a row")
    assert (tmp_path / f"cut{suffix}.resume").exists()
    save(study, cut, resume=True)
    assert cut.read_bytes() == whole.read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([whole.name, cut.name])


def test_a_cut_parquet_file_is_continued(tmp_path, study, monkeypatch):
    pytest.importorskip("pyarrow")
    from pyarrow import parquet

    from mla_cost.studies.sweep import output

    monkeypatch.setattr(output, "PART_ROWS", 1000)
    path = tmp_path / "cut.parquet"
    with pytest.raises(CutError):
        save(study, path, progress=cut_after(12_000))
    assert not path.exists()
    save(study, path, resume=True)
    table = parquet.read_table(path)
    assert table.num_rows == len(study)
    assert table["peak_bytes"].to_pylist()[::997] == [study[at]["peak_bytes"] for at in range(0, len(study), 997)]
    assert [file.name for file in tmp_path.iterdir()] == ["cut.parquet"]


def test_a_file_of_another_plan_is_not_continued(tmp_path, study):
    path = tmp_path / "cut.csv"
    with pytest.raises(CutError):
        save(study, path, progress=cut_after(1))
    other = sweep(over={"seq_len": [4096], "sp": [1]}, **BASE)
    with pytest.raises(mla_cost.InputError, match="another plan"):
        save(other, path, resume=True)
    save(study, path)
    with pytest.raises(mla_cost.InputError, match="nothing to resume"):
        save(other, path, resume=True)


def test_a_complete_file_stays_as_it_is(tmp_path):
    study = sweep(over={"sp": [3, 8], "seq_len": [4096, 8192]}, **BASE)
    path = tmp_path / "whole.csv"
    assert save(study, path) == 6
    before = path.read_bytes()
    assert save(study, path, resume=True) == 6
    assert path.read_bytes() == before
    path.write_bytes(before.replace(b"8192", b"8193"))
    with pytest.raises(mla_cost.InputError, match="does not hold this sweep whole"):
        save(study, path, resume=True)


def test_csv_holds_the_rows(tmp_path):
    study = sweep(over={"sp": [3, 8], "kernel": ["eager", "flash"], "form": "all"}, **BASE)
    save(study, tmp_path / "rows.csv")
    with (tmp_path / "rows.csv").open(encoding="utf-8") as file:
        found = list(csv.DictReader(file))
    wanted = [{name: "" if value is None else str(value) for name, value in study[at].items()} for at in range(12)]
    assert found == wanted
    save(study, tmp_path / "rows.jsonl")
    lines = (tmp_path / "rows.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == [study[at] for at in range(12)]


# ---- the command


HOSTILE = {
    "name": "=cmd|1", "title": "<b>", "dims": {
        "hidden": 512, "heads": 4, "q_lora_rank": None, "kv_lora_rank": 64, "qk_nope_head_dim": 32,
        "qk_rope_head_dim": 16, "v_head_dim": 32,
    },
}  # fmt: skip


def test_texts_of_others_are_no_formulas_no_markup_and_no_codes(tmp_path):
    file = tmp_path / "model.json"
    file.write_text(json.dumps(HOSTILE))
    study = sweep(over={"model": [str(file), "deepseek-v3"]}, device="a100-80gb", scope="attention")
    text = study.to_csv() or ""
    assert text.splitlines()[1].startswith("'=cmd|1,")
    assert study.to_csv(tmp_path / "rows.csv") is None
    assert (tmp_path / "rows.csv").read_text() == text
    file.write_text(json.dumps(HOSTILE | {"name": "<img src=x>"}))
    study = sweep(over={"model": [str(file), "deepseek-v3"]}, device="a100-80gb", scope="attention")
    assert "&lt;img src=x&gt;" in study._repr_html_()
    assert "<img" not in study._repr_html_()
    file.write_text(json.dumps(HOSTILE | {"title": "\x1b[31mred"}))
    with pytest.raises(mla_cost.InputError, match="title: must be text without control characters"):
        sweep(model=str(file), over={"sp": [1]}, device="a100-80gb", scope="attention")


def test_the_command_prints_every_format(capsys):
    flags = [*SWEEP, "--device", "910b-64gb", "--over", "sp=3,8", "--over", "form=all", "--format"]
    main_ok([*flags, "csv"])
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert len(rows) == 6
    assert rows[0]["status"] == "illegal"
    assert "sp 3" in rows[0]["reason"]
    main_ok([*flags, "json"])
    reported = json.loads(capsys.readouterr().out)
    assert reported["schema"] == "mla-cost/sweep/1"
    assert len(reported["rows"]) == 6
    main_ok([*flags, "markdown"])
    assert capsys.readouterr().out.count("\n") == 8
    main_ok(flags[:-1])
    table = capsys.readouterr().out
    assert "illegal" in table
    assert max(map(len, table.splitlines())) <= 80


def main_ok(arguments):
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "--over"),
        (["--over", "sp"], "FIELD=VALUES"),
        (["--over", "sp=1", "--over", "sp=2"], "twice"),
        (["--over", "sp=3"], "no row has an answer"),
        (["--over", "sp=8", "--format", "xml"], "csv"),
        (["--over", "sp=8", "--resume"], "--output"),
        (["--over", "sp=8", "--output", "rows.xls"], ".parquet"),
        (["--over", "sp=8", "--output", "nowhere/rows.csv"], "cannot write"),
        (["--over", "sp=8", "--scope", "modle"], "scope"),
        (["--over", "sp=8", "--plot", "picture.png"], "seq_len"),
        (["nothing.yaml", "--over", "sp=8"], "nothing.yaml"),
    ],
)
def test_bad_command_lines_end_with_2(capsys, arguments, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        main([*SWEEP, *arguments])
    assert ended.value.code == 2
    message = capsys.readouterr().err
    assert words in message
    assert message.count("\n") == 1


def test_a_plan_file_and_output(tmp_path, capsys):
    (tmp_path / "plan.yaml").write_text("model: deepseek-v2-lite\ndevice: h100-80gb\nform: [laga]\n")
    arguments = [*SWEEP, str(tmp_path / "plan.yaml"), "--over", "seq_len=4096..16384*2", "--over", "sp=1,2"]
    main_ok([*arguments, "--output", str(tmp_path / "rows.csv")])
    assert (tmp_path / "rows.csv").read_text().count("\n") == 7
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("suffix", [".png", ".svg"])
def test_a_picture(tmp_path, suffix):
    pytest.importorskip("matplotlib")
    path = tmp_path / f"frontier{suffix}"
    main_ok([*SWEEP, "--over", "seq_len=4096..65536*2", "--over", "sp=1,3,8", "--plot", str(path)])
    assert path.stat().st_size > 5000


def test_plan_prints_the_same_rows(capsys):
    main_ok(["plan", "--scope", "attention", "--kernel", "eager", "--device", "910b-64gb", "--format", "csv"])
    planned = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    main_ok([*SWEEP, "--device", "910b-64gb", "--over", "sp=8", "--format", "csv"])
    swept = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [{name: row[name] for name in swept[0]} for row in planned] == swept
    main_ok(["plan", "--format", "markdown"])
    assert capsys.readouterr().out.startswith("| scope | profile | model |")


def test_numpy_is_imported_by_sweeps_alone():
    code = (
        "import sys, mla_cost; mla_cost.plan(); from mla_cost.cli import main\n"
        "try: main(['plan', '--format', 'csv'])\nexcept SystemExit: pass\n"
        "assert 'numpy' not in sys.modules; mla_cost.sweep(over={'sp': [8]}); assert 'numpy' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_kernel_auto_follows_every_width_of_a_head():
    """An absorbed head is as wide as the latent, and no kernel trains one that is no multiple of 8."""
    asked: dict[str, Any] = {"model": "deepseek-v2-lite", "device": "h100-80gb", "form": "absorbed", "sp": 2}
    asked["scope"] = "attention"
    ranks = [512, 500, 64, 36]
    study = mla_cost.sweep(**asked, kernel="auto", over={"dims.kv_lora_rank": ranks, "seq_len": [2048]})
    for rank, row in zip(ranks, map(study.row, range(len(study))), strict=True):
        (planned,) = mla_cost.plan(**asked, kernel="auto", seq_len=2048, dims={"kv_lora_rank": rank}).results
        assert (row["kernel"], row["allocated_peak_bytes"]) == (planned.kernel, planned.memory.allocated_peak_bytes)
    assert [study.row(at)["kernel"] for at in range(4)] == ["mem-efficient", "eager", "mem-efficient", "eager"]
