"""Pictures of studies: what they draw is what the results say, by the words and marks in the SVG."""

from __future__ import annotations

import re
from html import unescape
from typing import Any

import pytest

from mla_cost import api
from mla_cost.explaining import schedules
from mla_cost.explaining.pictures import unique_names
from mla_cost.inputs import catalog, plan_files
from mla_cost.language.polynomial import ONE
from mla_cost.language.timeline import Allocation
from mla_cost.views import studies
from mla_cost.views.studies import LayoutPoint, PublishedPair, pairs_of

mpl = pytest.importorskip("matplotlib")
BLOCK: dict[str, Any] = {"scope": "attention", "kernel": "eager", "layers": 8, "sp": 8, "device": "910b-64gb"}
GIB = 2**30


@pytest.fixture
def drawn(tmp_path):
    """Draws with a function of `studies`; the words of the SVG, in order."""

    def draw(name: str, *given: Any) -> str:
        path = tmp_path / "picture.svg"
        with mpl.rc_context({"svg.fonttype": "none"}):
            getattr(studies, name)(path, "A title", *given)
        return unescape("\n".join(re.findall(r"<text[^>]*>([^<]*)</text>", path.read_text(encoding="utf-8"))))

    return draw


def test_a_tornado_has_every_lever_the_largest_first(drawn):
    (row,) = api.levers(form="explicit", **BLOCK).results
    assert row.verdict is not None
    words = drawn("draw_levers", row).splitlines()
    levers = [each for each in row.verdict.levers if each.required_delta_bytes]
    assert {each.change for each in levers} <= set(words)
    largest = max(levers, key=lambda each: abs(each.required_delta_bytes or 0))
    assert next(word for word in words if word in {each.change for each in levers}) == largest.change
    assert f"{(largest.required_delta_bytes or 0) / GIB:+,.2f}" in words
    assert f"{-(row.verdict.headroom_bytes or 0) / GIB:,.2f} short" in words


def test_communication_adds_up_by_axis(drawn):
    rows = api.plan(form=["explicit", "laga"], **BLOCK).results
    words = drawn("draw_communication", rows)
    for row in rows:
        wire = sum(call.wire_bytes for call in row.communication.collectives) / GIB
        assert f"{row.form} on 910b-64gb: sp" in words
        assert (f"{wire:,.3f}" if wire < 1 else f"{wire:,.2f}") in words
    assert "all-to-all" in words


def test_a_schedule_has_every_pass_once(drawn):
    """2 stages of 2 chunks and 4 micro-batches: 2 x 2 x 2 x 4 passes, each with its number."""
    settings = plan_files.settings(catalog.plan_path("moonlight-8-h100"), {}, {}, {})
    passes = schedules.rows(settings.model_copy(update={"pp": 2, "virtual_stages": 2, "micro_batches": 4}))
    assert len(passes) == 32
    words = drawn("draw_schedule", passes).splitlines()
    assert {"stage 0", "stage 1", "forward, chunk 0", "backward, chunk 1"} <= set(words)
    for number in "0123":
        assert words.count(number) >= 8


def test_a_search_marks_what_none_beats(drawn):
    points = [LayoutPoint("laga tp2 none", 30 * GIB, 5 * GIB, True), LayoutPoint("laga full", 50 * GIB, 9 * GIB, False)]
    words = drawn("draw_search", points, 70 * GIB)
    assert "laga tp2 none" in words
    assert "laga full" not in words
    assert "none beats it" in words


def test_published_figures_far_off_are_named(drawn):
    pairs = [PublishedPair("near", "GB", 10.0, 10.1, True), PublishedPair("far", "MB", 100.0, 20.0, False)]
    words = drawn("draw_published", pairs)
    assert "far" in words
    assert "MB, differ" in words


def test_what_is_published_as_a_bound_is_no_point():
    row = {"id": "cell", "unit": "MB", "published": 100.0, "predicted": 98.0, "status": "matches", "bound": ""}
    found = pairs_of([row, row | {"id": "at most", "bound": "at most"}])
    assert [pair.name for pair in found] == ["cell"]


def test_no_two_bands_have_one_name():
    def made(label: str, phase: Any, *place: str) -> Allocation:
        return Allocation(
            number=0, label=label, dims=(), dtype="bf16", size=ONE, phase=phase, place=(place[0], place[1])
        )

    found = [
        made("rows", "forward", "experts", "permute rows"),
        made("out", "forward", "experts", "grouped linear"),
        made("out", "forward", "shared experts", "linear"),
        made("out", "recompute", "shared experts", "linear"),
        made("out", "recompute", "shared experts", "linear"),
    ]
    assert unique_names(found) == [
        "rows",
        "out (grouped linear in experts)",
        "out (linear in shared experts) (forward)",
        "out (linear in shared experts) (recompute), 1st",
        "out (linear in shared experts) (recompute), 2nd",
    ]


def test_a_layer_of_experts_names_its_tensors_apart():
    settings = plan_files.settings(catalog.plan_path("deepseek-v3-2048-h800"), {"form": ["explicit"]}, {}, {})
    (it,) = api.pictures(settings)
    names = [layer.name for layer in it.layers]
    assert len(names) == len(set(names))
    assert {"out (grouped linear in experts)", "gradient of out (unpermute rows in experts)"} <= set(names)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("plan --picture levers", "name its file with --plot"),
        ("plan --device none --picture levers --plot a.svg", "name one with --device"),
        ("plan --scope attention --picture schedule --plot a.svg", "pp of 2 or more"),
        ("plan --scope attention --sp 1 --picture communication --plot a.svg", "nothing is sent"),
    ],
)
def test_a_picture_that_a_plan_has_not_is_refused(capsys, tmp_path, monkeypatch, line, words):
    from mla_cost.cli import main

    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        main([*line.split(), "--quiet"])
    assert ended.value.code == 2
    assert words in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
