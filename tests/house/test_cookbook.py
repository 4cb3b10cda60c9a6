"""The cookbook runs as it stands."""

from __future__ import annotations

import doctest
from pathlib import Path

from tests.choosing import EXHAUSTIVE

# the search over 64 device counts finds the same one among five of them; `make exhaustive` runs the page's own
FEWER = ('"8..512+8"', '"256..384+32"')
PAGE = Path(__file__).parents[2] / "docs" / "cookbook.md"


def test_the_cookbook_runs():
    text = PAGE.read_text(encoding="utf-8")
    assert text.count(FEWER[0]) == 1
    text = text if EXHAUSTIVE else text.replace(*FEWER)
    test = doctest.DocTestParser().get_doctest(text, {}, PAGE.name, str(PAGE), 0)
    assert len(test.examples) > 10
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE)
    reported: list[str] = []
    runner.run(test, out=reported.append)
    assert runner.failures == 0, "".join(reported)
