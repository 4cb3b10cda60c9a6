"""Megatron's layout strings: what they say, and what is wrong where."""

from __future__ import annotations

import pytest

from mla_cost.errors import InputError
from mla_cost.mesh.layout_string import parse_layout


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("Ettt|(tt|)*29,m|L", ("Ettt", *["tt"] * 29, "m", "L")),
        ("E|t*3|L", ("E", "ttt", "L")),
        ("E|||tL", ("E", "", "", "tL")),
        ("E|*3tL", ("E", "", "", "tL")),
        ("E(t|t)*2L", ("Et", "tt", "tL")),
    ],
)
def test_layout_strings(text: str, parts: tuple[str, ...]) -> None:
    assert parse_layout(text) == parts


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("Etx|L", "pipeline_layout: 'Etx|L': at character 3, 'x': nothing of that name goes into a stage"),
        ("E(tt|*5L", "at character 2, '(': this parenthesis is never closed"),
        ("E(t(t))*2", "at character 4, '(': a group holds letters and | only: repeats do not nest"),
        ("E(tt|)tL", "at character 6, ')': a group is followed by * and the number of repeats"),
        ("Et*|L", "at character 3, '*': * is followed by the number of repeats, 1 to 999,999"),
        ("Et*0|L", "at character 3, '*': * is followed by the number of repeats, 1 to 999,999"),
        ("Et*999999|L", "makes more than 100000 parts"),
        ("*2", "at character 1, '*': nothing of that name"),
        ("Et*٣L", "at character 3, '*': * is followed by the number of repeats"),
    ],
)
def test_layout_errors_quote_the_text_and_the_place(text: str, said: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_layout(text)
    assert said in str(caught.value)
    assert "t (transformer layer)" in str(caught.value)
