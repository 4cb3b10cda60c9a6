"""Texts in a CSV that a spreadsheet opens: none of them is run as a formula."""

from __future__ import annotations

from typing import Final

_STARTS: Final = ("=", "+", "-", "@", "\t", "\r")


def harmless(text: str) -> str:
    """The text with an apostrophe before what a spreadsheet would take for a formula; numbers are no texts.

    >>> harmless("=HYPERLINK(1)"), harmless("laga")
    ("'=HYPERLINK(1)", 'laga')
    """
    return f"'{text}" if text.startswith(_STARTS) else text
