"""Counts of tokens as people write them: `8k`, `128k`, `1M`, `16_384`, `1e4`. k is 1,024 and M 1,048,576.

B and T, of the tokens of a training, are 10^9 and 10^12.
"""

from __future__ import annotations

import re
from typing import Any, Final

from mla_cost.errors import shown

SHOULD_BE: Final = "must be a whole number such as 16384, 16_384, 16k or 1M"
_TEXT: Final = re.compile(r"(-?\d[\d_]{0,60}(?:\.\d{1,6})?)(?:[eE]\+?(\d{1,2})|([kKmMbBtT]))?")
_TIMES: Final = {"": 1, "k": 1024, "m": 1024**2, "b": 10**9, "t": 10**12}


def count_of(given: Any) -> Any:
    """The whole number that a text stands for; what is no text is left as it is.

    Raises:
        ValueError: a text that is no whole number.

    """
    if not isinstance(given, str):
        return given
    found = counted(given)
    if found is None:
        raise ValueError(f"{SHOULD_BE}, not {shown(given)}")
    return found


def counted(text: str) -> int | None:
    """The same; None for a text that is no whole number."""
    match = _TEXT.fullmatch(text.strip())
    if match is None:
        return None
    whole, _, part = match[1].replace("_", "").partition(".")
    tens = int(match[2] or 0)
    amount = int(whole + part) * _TIMES[(match[3] or "").lower()] * 10**tens
    found, rest = divmod(amount, 10 ** len(part))
    return None if rest else found
