"""The documentation is not stale, its links resolve, and its formulas give the numbers of a plan."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest

import mla_cost
from mla_cost.explaining.explain import Summand
from mla_cost.explaining.formulas import merged
from mla_cost.language.dims import SYMBOLS, base_values
from mla_cost.language.polynomial import ZERO
from mla_cost.language.rules import RULES
from tests.choosing import EXHAUSTIVE

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
MACHINE = re.compile(r"(?<![\w./:-])/(?:work|tmp|home|root|Users|usr|opt|mnt|var)/")
LINK = re.compile(r"(?<!!)\[[^\]]+\]\(([^)\s]+)\)")
MOVES = {"sequence_to_heads", "heads_to_sequence", "gather", "own_heads"}
# DeepSeek-V3 at the settings of `mla-cost plan`
VALUES = base_values(
    {"S": 16384, "P": 8, "b": 1, "n": 128, "h": 7168, "d_q": 1536, "d_c": 512, "k": 128, "r": 64, "v": 128}, True
)


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


@cache
def build() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs_build", ROOT / "docs" / "build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_generated_parts_are_not_stale():
    stale = [
        str(path.relative_to(ROOT)) for path, wanted in build().pages() if path.read_text(encoding="utf-8") != wanted
    ]
    assert stale == [], "run `make docs`"


def test_every_generated_part_stands_somewhere():
    text = "".join(path.read_text(encoding="utf-8") for path in PAGES)
    assert [name for name in build().PARTS if f"<!-- made by docs/build.py: {name} -->\n" not in text] == []


def test_the_gallery_is_not_stale():
    """Each picture is what its command draws: one of them here, all of them in `make exhaustive`."""
    pytest.importorskip("matplotlib")
    module = build()
    names = tuple(module.GALLERY) if EXHAUSTIVE else ("communication.svg",)
    stale = [path.name for path, wanted in module.gallery(names) if path.read_text(encoding="utf-8") != wanted]
    assert stale == [], "run `make docs`"
    drawn = {path.name for path in (ROOT / "docs" / "pictures").glob("*.svg")}
    assert drawn == {*module.GALLERY, "laga-paper.svg"}


# ---- links


def links(path: Path) -> Iterator[tuple[str, str]]:
    text = re.sub(r"```.*?```", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
    for target in LINK.findall(text):
        if "://" not in target:
            yield target.partition("#")[0], target.partition("#")[2]


def anchors(path: Path) -> set[str]:
    """Headings as the usual renderers name them, and anchors written by hand."""
    text = path.read_text(encoding="utf-8")
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    slugs = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
    return slugs | set(re.findall(r'<a id="([^"]+)">', text))


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_resolve(path):
    for file, anchor in links(path):
        target = (path.parent / file).resolve() if file else path
        assert target.exists(), f"{file} does not exist"
        assert not anchor or anchor in anchors(target), f"{file}#{anchor} does not exist"


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_path_of_a_machine(path):
    assert MACHINE.findall(path.read_text(encoding="utf-8")) == []


def test_the_index_names_every_page():
    named = {(ROOT / "docs" / file).resolve() for file, _ in links(ROOT / "docs" / "README.md")}
    pages = {path for path in PAGES if path.is_relative_to(ROOT / "docs") and path.name != "README.md"}
    assert sorted(str(path.relative_to(ROOT)) for path in pages - named) == []


# ---- what the pages say


def test_every_symbol_is_in_the_notation():
    assert [name for name in SYMBOLS if f"| `{name}` |" not in read("docs/notation.md")] == []


def test_every_op_and_statement_is_described():
    text = read("docs/adding.md")
    described = set(re.findall(r"`(\w+(?: \"[\w-]+\")?)`", text))
    assert sorted(RULES.keys() - described) == []
    assert RULES.keys() >= MOVES


def test_a_sum_adds_up_equal_products():
    terms = [
        Summand("a", "", ("2", "S", "b"), ZERO),
        Summand("b", "", ("4", "b"), ZERO),
        Summand("c", "", ("6", "S", "b"), ZERO),
    ]
    assert merged(terms) == "8*S*b + 4*b"


def evaluated(formula: str) -> int:
    """A printed formula at VALUES."""
    code = compile(formula.replace("^", "**"), "formula", "eval")
    return int(eval(code, {"__builtins__": {}}, {**VALUES, "S": VALUES["s"] * VALUES["P"]}))  # noqa: S307  # our own page


def section(form: str) -> str:
    """The tables of a form at sp > 1 with more than one head per rank."""
    return (
        read("docs/formulas.md")
        .partition(f"### {form}, sp > 1, more than one head per rank\n")[2]
        .partition("\n### ")[0]
    )


def column(text: str, title: str, number: int) -> list[str]:
    rows = text.partition(f"**{title}**")[2].partition("\n**")[0].splitlines()
    return [row.split(" | ")[number].strip("| `") for row in rows if row.startswith("| ") and "`" in row]


@pytest.mark.parametrize("form", ["explicit", "absorbed", "laga"])
def test_the_printed_formulas_give_the_figures_of_the_plan(form):
    (row,) = mla_cost.plan("deepseek-v3", None, form=form, seq_len=16384, sp=8, scope="attention").to_dict()["results"]
    text, sent, phases = section(form), row["communication"], ("forward", "backward")
    assert sum(map(evaluated, column(text, "Saved", 1))) == row["memory"]["saved_bytes"]
    assert evaluated(text.partition("Together: `")[2].partition("`")[0]) == row["memory"]["saved_bytes"]
    for number, field in ((2, "payload_bytes"), (3, "wire_bytes")):
        printed = sum(map(evaluated, column(text, "Payload and wire", number)))
        assert printed == sum(sent[phase][field] for phase in phases)
    assert max(map(evaluated, column(text, "Peak", 1))) == row["memory"]["peak_bytes"]
    flops = sum(evaluated(term) for at in (1, 2) for term in column(text, "Flops", at))
    assert flops == sum(row["flops"][phase]["executed"] for phase in phases)
