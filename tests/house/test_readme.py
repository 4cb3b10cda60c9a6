"""The README and the guide do what they say: their commands run, their Python is a doctest, output is the command's."""

from __future__ import annotations

import doctest
import re
import shlex
from pathlib import Path
from typing import get_args

import pytest

from mla_cost.cli import main
from mla_cost.declared.forms import FORMS
from mla_cost.results import Status
from tests.choosing import EXHAUSTIVE

README = Path(__file__).parents[2] / "README.md"
GUIDE = README.parent / "docs" / "guide.md"
OPENING = README.read_text(encoding="utf-8")
TEXT = f"{OPENING}\n{GUIDE.read_text(encoding='utf-8')}"
CONFIG = Path(__file__).parents[1] / "fixtures" / "hf" / "deepseek_like.json"


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", TEXT, re.DOTALL | re.MULTILINE)


def commands() -> list[str]:
    lines = [line for block in blocks("sh") for line in block.splitlines()]
    return sorted({line.partition(" #")[0].strip() for line in lines if line.startswith("mla-cost ")})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the files that the README shows, named as it names them, and a published config."""
    for block in blocks("yaml"):
        (tmp_path / block.splitlines()[0].removeprefix("# ")).write_text(block, encoding="utf-8")
    (tmp_path / "config.json").write_bytes(CONFIG.read_bytes())
    return tmp_path


# what narrows a command over thousands of plans to one over hundreds; `make exhaustive` runs it as it stands
FEWER = {
    "search": ("--form", "explicit", "--micro-batch", "1", "--tp", "8", "--sp", "1", "--sharding", "zero1"),
    "fit": ("--form", "explicit", "--sharding", "distributed"),
}


def narrowed(words: list[str]) -> list[str]:
    asked = FEWER.get(words[0], ())
    pairs = zip(asked[::2], asked[1::2], strict=True)
    return [*words, *(word for pair in pairs if pair[0] not in words for word in pair)]


@pytest.mark.parametrize("command", commands())
def test_every_command_answers(command, folder, monkeypatch, capsys):
    """In this process: how a process of its own starts and ends is tested with the command line."""
    monkeypatch.chdir(folder)
    words = shlex.split(command)[1:]
    with pytest.raises(SystemExit) as ending:
        main(words if EXHAUSTIVE else narrowed(words))
    out, err = capsys.readouterr()
    assert not ending.value.code, err
    assert out.strip() or "--output" in command or "--plot" in command


def test_python_examples():
    (example,) = blocks("python")
    test = doctest.DocTestParser().get_doctest(example, {}, GUIDE.name, str(GUIDE), 0)
    assert test.examples
    failures: list[str] = []
    doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE).run(test, out=failures.append)
    assert not failures, "".join(failures)


def test_make_targets_exist():
    targets = re.findall(r"^make (\w+)", "\n".join(blocks("sh")), re.MULTILINE)
    made = re.findall(r"^(\w+):", (README.parent / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert targets == ["plan", "test"]
    assert set(targets) <= set(made)


def test_the_first_screen_answers_what_how_and_shows_it():
    """What it is for, how to install it, one command, its output and a picture, within two screens of 60 lines."""
    opening = OPENING.splitlines()
    wanted = ("will it fit", "pipx install", "$ mla-cost plan", "![")
    assert all(any(word in line for line in opening[:60]) for word in wanted)
    assert len(opening) < 120


def test_every_verdict_is_explained():
    assert [status for status in get_args(Status) if f"| {status} |" not in TEXT] == []


def test_other_names_of_forms_are_told():
    names = [form.known_as.partition(" ")[0] for form in FORMS.values() if form.known_as]
    assert names
    assert [name for name in names if f"`{name}`" not in TEXT] == []
