"""`mla-cost report`: one page that says what the plan says, and on which a hostile name is a name."""

from __future__ import annotations

import re
from collections import Counter
from html.parser import HTMLParser
from typing import Any

import pytest
import yaml

from mla_cost import api
from mla_cost.cli import main
from mla_cost.inputs import catalog, plan_files
from mla_cost.views.report import MOST_LEVERS
from tests.choosing import EXHAUSTIVE
from tests.views.browser import PHONE, across_a_phone, dom, needs_browser

pytest.importorskip("jinja2")
HOSTILE = "</title><script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">&{{7*7}}\"'"
LARGEST = 200 * 1024


class Page(HTMLParser):
    """What a page is made of."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    def of(self, tag: str) -> list[dict[str, str | None]]:
        """The attributes of every element of a kind."""
        return [attributes for name, attributes in self.elements if name == tag]


def written(tmp_path_factory, *arguments: str) -> str:
    path = tmp_path_factory.mktemp("report") / "report.html"
    with pytest.raises(SystemExit) as ended:
        main(["report", *arguments, "-o", str(path)])
    assert ended.value.code == 0
    return path.read_text(encoding="utf-8")


# the second: sixteen stages in every form, the longest page of a ready plan
PLAN: tuple[str, ...] = ("moonlight-8-h100", "--form", "laga") if not EXHAUSTIVE else ("deepseek-v3-2048-h800",)


@pytest.fixture(scope="module")
def page_text(tmp_path_factory) -> str:
    """The page of a whole model."""
    return written(tmp_path_factory, *PLAN)


@pytest.fixture(scope="module")
def hostile(tmp_path_factory, checkout) -> tuple[Any, str]:
    """A block of a model and on a device whose titles and sources would run in a page that let them."""
    folder = tmp_path_factory.mktemp("hostile")
    model = yaml.safe_load((checkout / "configs/models/deepseek-v2-lite.yaml").read_text(encoding="utf-8"))
    device = yaml.safe_load((checkout / "configs/devices/a100-80gb.yaml").read_text(encoding="utf-8"))
    model |= {"title": HOSTILE, "aliases": []}
    device |= {"title": HOSTILE, "aliases": [], "sources": dict.fromkeys(device["sources"], HOSTILE)}
    for name, found in (("m", model), ("d", device)):
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(found), encoding="utf-8")
    asked = ("--scope", "attention", "--model", str(folder / "m.yaml"), "--device", str(folder / "d.yaml"))
    text = written(tmp_path_factory, *asked, "--form", "laga")
    (folder / "page.html").write_text(text, encoding="utf-8")
    return folder, text


def test_it_is_small_and_needs_nothing_from_elsewhere(page_text):
    assert len(page_text.encode()) <= LARGEST
    page = Page(page_text)
    assert not page.of("script")
    assert not [a for _, attributes in page.elements for a in attributes if a.startswith("on")]
    links = [attributes.get("href") or attributes.get("src") for _, attributes in page.elements]
    assert all(link.startswith("#") for link in links if link)
    assert "url(" not in page_text
    assert "@import" not in page_text


def test_it_says_what_the_plan_says_verdict_first(page_text):
    settings = plan_files.settings(catalog.plan_path(PLAN[0]), {"form": list(PLAN[2:]) or ["all"]}, {}, {})
    words = " ".join(" ".join(Page(page_text).words).split())
    answer = api.answer(settings)
    places = [words.index(row.verdict.reason) for row in answer.results if row.verdict is not None]
    assert max(places) < words.index("What to change") < words.index("Every pipeline stage")
    for row in answer.results:
        for stage in row.memory.stages or ():
            assert f"{stage.allocated_peak_bytes / 2**30:,.2f}" in words
        for axis, amount in row_wire(row).items():
            assert re.search(rf"{axis} [\d,]+ [\d,]+ [\d.,]+ {amount / 2**30:,.2f}", words)
    assert f"The first {MOST_LEVERS} of " in words
    assert f"mla-cost plan --model {answer.inputs['model']}" in words


def row_wire(row: Any) -> dict[str, int]:
    found: Counter[str] = Counter()
    for call in row.communication.collectives:
        found[call.axis] += call.wire_bytes
    return {axis: amount for axis, amount in found.items() if amount >= 2**30}


def test_a_reader_of_screens_and_keys_gets_about(page_text):
    page = Page(page_text)
    kinds = Counter(tag for tag, _ in page.elements)
    assert kinds["main"] == kinds["h1"] == kinds["header"] == kinds["nav"] == 1
    assert kinds["table"] == kinds["caption"]
    assert all(attributes.get("scope") in {"col", "row"} for attributes in page.of("th"))
    ids = Counter(attributes["id"] for _, attributes in page.elements if attributes.get("id"))
    assert set(ids.values()) == {1}
    drawn = [attributes for attributes in page.of("svg") if "aria-hidden" not in attributes]
    assert kinds["desc"] == len(drawn) >= 2
    for attributes in (*page.of("section"), *drawn):
        assert all(name in ids for name in (attributes["aria-labelledby"] or "-").split())
    assert all((attributes["href"] or "")[1:] in ids for attributes in page.of("a"))
    assert all("tabindex" in attributes for _, attributes in page.elements if attributes.get("class") == "wide")


def test_formulas_are_mathml_with_their_values(hostile):
    page = Page(hostile[1])
    assert len(page.of("math")) == 3
    assert {"mi", "mn", "mo"} <= {tag for tag, _ in page.elements}


def test_a_hostile_name_stays_a_name(hostile):
    page = Page(hostile[1])
    assert not page.of("script")
    assert not page.of("img")
    assert HOSTILE in "".join(page.words)


@needs_browser
def test_a_hostile_name_stays_a_name_in_a_browser(hostile, tmp_path):
    shown = dom(hostile[0] / "page.html", tmp_path)
    page = Page(shown)
    assert not page.of("script")
    assert not page.of("img")
    title = re.search(r"<title>(.*?)</title>", shown, re.DOTALL)
    assert title is not None
    assert title.group(1) != "owned"
    assert HOSTILE.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;") in shown


@needs_browser
def test_a_phone_needs_no_scrolling_sideways(page_text, hostile, tmp_path):
    for text in (page_text, hostile[1]):
        window, scrolled, out = across_a_phone(text, tmp_path)
        assert (window, out) == (PHONE, [])
        assert scrolled <= window


def test_what_is_sent_is_told_by_link(tmp_path_factory):
    """Two nodes of eight: tp 4 and the sequences of sp 2 stay inside; of ep 16 half of the other ranks are beyond."""
    asked = ["moonlight-8-h100", "--form", "laga", "--tp", "1", "--ep", "16", "--dp", "16"]
    words = " ".join(" ".join(Page(written(tmp_path_factory, *asked)).words).split())
    settings = plan_files.settings(catalog.plan_path(asked[0]), {"form": ["laga"]}, {"ep": 16, "dp": 16}, {})
    (row,) = api.answer(settings).results
    (ep,) = [link for link in row.communication.links if link.axis == "ep"]
    wire = row_wire(row)
    assert ep.inside_bytes + ep.between_bytes == wire["ep"]
    assert ep.between_bytes == round(wire["ep"] * 8 / 15)  # 15 others, 8 of them in the other node
    assert re.search(
        rf"ep 16 [\d,]+ [\d.,]+ [\d.,]+ {ep.inside_bytes / 2**30:,.2f} {ep.between_bytes / 2**30:,.2f}", words
    )
    assert {link.axis for link in row.communication.links} == {call.axis for call in row.communication.collectives}
    assert "exchanges over ep that nothing hides" in words


def test_another_file_and_a_plan_without_numbers_are_refused(capsys, tmp_path):
    for arguments, words in ((["-o", str(tmp_path / "a.pdf")], "allowed: .html"), (["--sp", "7"], "7")):
        with pytest.raises(SystemExit) as ended:
            main(["report", *arguments])
        assert ended.value.code == 2
        assert words in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
