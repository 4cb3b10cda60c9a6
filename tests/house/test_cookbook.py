"""The cookbook runs as it stands."""

from __future__ import annotations

import doctest
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "cookbook.md"


def test_the_cookbook_runs():
    text = PAGE.read_text(encoding="utf-8")
    test = doctest.DocTestParser().get_doctest(text, {}, PAGE.name, str(PAGE), 0)
    assert len(test.examples) > 10
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE)
    reported: list[str] = []
    runner.run(test, out=reported.append)
    assert runner.failures == 0, "".join(reported)
