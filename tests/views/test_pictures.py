"""Memory as bars in the terminal and as pictures: what they draw adds up to the figures of the plan."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from mla_cost import api
from mla_cost.cli import main
from mla_cost.inputs.settings import PlanSettings
from mla_cost.views.bars import LIMIT, LOOK, MOST, WIDTH

QUESTIONS: list[dict[str, Any]] = [{}, {"layers": 4}, {"kernel": "mem-efficient"}, {"remat": "full"}, {"device": ()}]
GLYPHS = "".join(glyph for glyph, _ in LOOK)


def printed(capsys, *arguments: str, code: int = 0) -> str:
    with pytest.raises(SystemExit) as ended:
        main(["plan", *arguments])
    out, err = capsys.readouterr()
    assert ended.value.code == code, err
    return out or err


def bars(text: str, label: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith(label) and any(glyph in line for glyph in GLYPHS)]


@pytest.mark.parametrize("question", QUESTIONS, ids=str)
def test_the_layers_at_the_peak_are_the_allocated_peak(question):
    settings = PlanSettings(**{"kernel": "eager", **question}, scope="attention")
    rows = [row for row in api.answer(settings).results if row.memory.allocated_peak_bytes is not None]
    for it, row in zip(api.pictures(settings), rows, strict=True):
        assert it.totals[it.peak] == row.memory.allocated_peak_bytes == max(it.totals)
        assert row.memory.allocated_peak_moment == (it.phases[it.peak], it.ops[it.peak])
        assert all(amount >= 0 for layer in it.layers for amount in layer.bytes)


def test_the_largest_tensors_have_names():
    (it,) = api.pictures(PlanSettings(form=("absorbed",), device=("a100-80gb",), scope="attention", kernel="eager"))
    names = {layer.name for layer in it.layers}
    assert {"probabilities", "probabilities copy", "kernel workspace", "weights"} <= names
    rest = next(layer for layer in it.layers if layer.name == "everything else")
    assert max(rest.bytes) * 10 < max(it.totals)


def test_every_stage_has_a_bar_of_its_length(capsys):
    text = printed(capsys, "deepseek-v3-2048-h800", "--form", "explicit")
    found = bars(text, "stage ")
    stages = api.answer(_ready()).results[0].memory.stages or ()
    assert len(found) == len(stages) == MOST
    most = max(stage.allocated_peak_bytes for stage in stages)
    for line, stage in zip(found, stages, strict=True):
        cells = sum(line.count(glyph) for glyph in (*GLYPHS, LIMIT))
        assert (
            abs(cells - stage.allocated_peak_bytes * WIDTH / most) <= WIDTH
        )  # the line of what is usable stands apart
        assert line.split()[2] == f"{stage.allocated_peak_bytes / 2**30:,.2f}"
        assert line.count(LIMIT) == 1
    longest = max(found, key=lambda line: sum(line.count(glyph) for glyph in GLYPHS))
    assert sum(longest.count(glyph) for glyph in (*GLYPHS, LIMIT)) == WIDTH
    assert max(map(len, text.splitlines())) <= 80


def _ready() -> PlanSettings:
    from mla_cost.inputs import catalog, plan_files

    return plan_files.settings(catalog.plan_path("deepseek-v3-2048-h800"), {"form": ["explicit"]}, {}, {})


@pytest.mark.parametrize("changes", [{}, {"remat": "full"}, {"stage": 15}, {"profile": "megatron"}], ids=str)
def test_the_layers_of_a_stage_add_up_to_its_peak(changes):
    settings = _ready().model_copy(update=changes)
    (row,), (it,) = api.answer(settings).results, api.pictures(settings)
    assert it.totals[it.peak] == row.memory.allocated_peak_bytes == max(it.totals)
    assert it.what.startswith(f"stage {row.settings['stage']}, layer ")
    assert row.memory.allocated_peak_moment is not None
    assert row.memory.allocated_peak_moment.op.startswith(it.ops[it.peak])


def test_an_optimizer_step_that_peaks_has_no_tensors_to_draw():
    """Recomputing everything, with bf16 gradients, on one stage: the step's fp32 copy is the most."""
    few: dict[str, Any] = {
        "seq_len": 256,
        "remat": "full",
        "gradient_dtype": "bf16",
        "sp": 1,
        "ep": 8,
        "dp": 8,
        "device": (),
    }
    settings = PlanSettings(model="deepseek-v2-lite", scope="model", form=("laga",), **few)
    (row,) = api.answer(settings).results
    assert row.memory.allocated_peak_moment == ("step", "gradients in fp32")
    assert api.pictures(settings) == ()


def test_many_stages_are_drawn_on_request(capsys):
    flags = ["--scope", "model", "--model", "deepseek-v3", "--device", "h800-80gb", "--form", "explicit", "--sp", "1"]
    flags += ["--seq-len", "4096", "--pp", "30", "--set", "pipeline_layout=Et|(tt|)*28t*4mL"]
    assert 0 < len(bars(printed(capsys, *flags), "stage ")) <= 4
    assert len(bars(printed(capsys, *flags, "--bars"), "stage ")) == 30


def test_forms_have_bars_on_request(capsys):
    block = ("--scope", "attention", "--kernel", "eager")
    plain, drawn = printed(capsys, *block), printed(capsys, *block, "--bars")
    assert not bars(plain, "laga")
    assert len(bars(drawn, "laga")) == 2  # devices
    assert max(map(len, drawn.splitlines())) <= 80


@pytest.mark.parametrize(
    ("suffix", "arguments"),
    [
        (".png", ["--device", "a100-80gb", "--scope", "attention", "--kernel", "eager"]),
        (".svg", ["--device", "none", "--scope", "attention", "--layers", "4", "--kernel", "eager-bmm"]),
        (".svg", ["deepseek-v3-2048-h800"]),
        (".png", ["moonlight-8-h100", "--form", "laga"]),
    ],
)
def test_a_picture_is_drawn(capsys, tmp_path, arguments, suffix):
    pytest.importorskip("matplotlib")
    path = tmp_path / f"memory{suffix}"
    printed(capsys, *arguments, "--plot", str(path))
    begins = {".png": b"\x89PNG", ".svg": b"<?xml"}[suffix]
    assert path.read_bytes().startswith(begins)


def test_the_drawing_names_the_peak_and_its_tensors(capsys, tmp_path):
    pytest.importorskip("matplotlib")
    import matplotlib as mpl

    path = tmp_path / "memory.svg"
    with mpl.rc_context({"svg.fonttype": "none"}):
        asked = ["--scope", "attention", "--kernel", "eager", "--device", "a100-80gb", "--form", "absorbed"]
        printed(capsys, *asked, "--plot", str(path))
    text = path.read_text(encoding="utf-8")
    for words in ("peak 41.02 GiB, backward of probabilities", "probabilities copy", "kernel workspace, 16.00"):
        assert words in text


def test_a_file_of_another_kind_is_refused(capsys, tmp_path):
    assert "allowed: .png, .svg" in printed(capsys, "--plot", str(tmp_path / "memory.gif"), code=2)


def test_a_folder_that_is_not_there_is_refused_before_the_table(capsys, tmp_path):
    (tmp_path / "folder.png").mkdir()
    for path, words in ((tmp_path / "no" / "memory.png", "no such folder"), (tmp_path / "folder.png", "a folder")):
        with pytest.raises(SystemExit) as ended:
            main(["plan", "--form", "laga", "--plot", str(path)])
        assert ended.value.code == 2
        found = capsys.readouterr()
        assert found.out == ""
        assert f"{path}: cannot write it: " in found.err
        assert words in found.err


def test_without_matplotlib_the_extra_is_named(capsys, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert 'pip install ".[plot]"' in printed(capsys, "--plot", str(tmp_path / "memory.png"), code=2)


MARKED = [
    "moonlight-8-h100 --form explicit",
    "moonlight-8-h100 --form explicit --profile megatron",
    "deepseek-v3-2048-h800 --form explicit --profile megatron",
    "moonlight-8-h100 --form explicit --profile megatron --pp 3 --dp 8 --micro-batches 6 --set virtual_stages=3",
]


@pytest.mark.parametrize("line", MARKED)
def test_the_legend_names_the_marks_that_are_drawn_and_no_other(capsys, line):
    text = printed(capsys, *line.split())
    (legend,) = [row for row in text.splitlines() if f"{LOOK[0][0]} weights" in row]
    drawn = "".join(bars(text, "stage "))
    assert {glyph for glyph in GLYPHS if glyph in drawn} == {glyph for glyph in GLYPHS if glyph in legend}


@pytest.mark.parametrize("line", MARKED)
def test_the_columns_of_both_tables_add_up_to_the_total(capsys, monkeypatch, line):
    monkeypatch.setenv("COLUMNS", "120")  # narrower ones have a paragraph for a stage
    text = printed(capsys, *line.split())
    for first, last in (("states", "total"), ("weights", "total")):
        rows = text.splitlines()
        at = next(number for number, row in enumerate(rows) if first in row and last in row and ":" not in row)
        names = rows[at].replace("in flight", "flight").split()
        cells = rows[at + 2].split()
        amounts = [float(cell) for cell in cells[names.index(first) : names.index(last) + 1]]
        assert sum(amounts[:-1]) == pytest.approx(amounts[-1], abs=0.005 * len(amounts))


def test_what_a_profile_keeps_for_the_whole_run_has_a_column(capsys):
    """Stand-ins for weight gradients, 4 + 1 + 2 cuBLAS workspaces, rotary tables of 27 layers: 1.15 of 77.72 GiB."""
    standing = 888_930_304 + 5 * (32 * 2**20 + 1024) + 2 * 32 * 2**20 + 27 * 8192 * 64 * 8
    text = printed(capsys, "moonlight-8-h100", "--form", "explicit", "--profile", "megatron")
    (row,) = [row for row in text.splitlines() if row.startswith("explicit   ")]
    assert row.split()[1:6] == ["41.10", "0.00", "35.47", f"{standing / 2**30:.2f}", "77.72"]
    assert "buffers" not in printed(capsys, "moonlight-8-h100", "--form", "explicit").replace("NCCL buffers", "")
