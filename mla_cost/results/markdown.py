"""Tables in GitHub's Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def table(heads: Sequence[str], rows: Iterable[Iterable[str]], right: Iterable[bool] = ()) -> str:
    """A table of texts without a final newline. right: by column, whether its texts stand to the right.

    >>> print(table(("a", "b"), [("x", "1")], right=(False, True)))
    | a | b |
    | --- | ---: |
    | x | 1 |
    """
    marks = ["---:" if aligned else "---" for aligned in right] or ["---"] * len(heads)
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (heads, marks, *rows))
