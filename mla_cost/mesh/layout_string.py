"""Megatron's layout strings: what every part of a pipeline holds.

Source: Megatron-Core at d98e8a64, transformer/pipeline_parallel_layer_layout.py.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from mla_cost.errors import InputError, shown

LAYOUT: Final = "pipeline_layout"  # the setting, as a plan spells it
_LETTERS: Final = "EtmL"
_LONGEST: Final = 100_000
_WORDS: Final = (
    "E (embedding), t (transformer layer), m (MTP module), L (loss), | (next stage), (...)*n or x*n (repeat)"
)


@lru_cache(maxsize=256)
def parse_layout(text: str) -> tuple[str, ...]:
    """Megatron's pipeline layout string as one string of the letters E, t, m, L per part, in order.

    Raises:
        InputError: naming the character and its place, and what may stand there.

    Example:
        >>> parse_layout("Et*2|(tt|)*2t|tmL")
        ('Ett', 'tt', 'tt', 't', 'tmL')

    """
    return tuple(_unrolled(text).split("|"))


def _unrolled(text: str) -> str:
    """`text` without parentheses, repeats and commas, which are cosmetic."""
    done, place = "", 0
    while place < len(text):
        unit, after = _unit(text, place)
        times, place = _times(text, after, grouped=text[place] == "(")
        if len(done) + times * len(unit) > _LONGEST:
            raise _bad(text, after, f"this repeat makes more than {_LONGEST} parts of a model")
        done += unit * times
    return done


def _unit(text: str, place: int) -> tuple[str, int]:
    """The letter, bar or group that starts at `place`, and the place after it."""
    if text[place] == ",":
        return "", place + 1
    if text[place] != "(":
        return _letter(text, place), place + 1
    end = text.find(")", place)
    if end < 0:
        raise _bad(text, place, "this parenthesis is never closed")
    inside = range(place + 1, end)
    nested = next((at for at in inside if text[at] in "(*"), None)
    if nested is not None:
        raise _bad(text, nested, "a group holds letters and | only: repeats do not nest")
    return "".join(_letter(text, at) for at in inside if text[at] != ","), end + 1


def _letter(text: str, place: int) -> str:
    if text[place] not in f"{_LETTERS}|":
        raise _bad(text, place, "nothing of that name goes into a stage")
    return text[place]


def _times(text: str, place: int, *, grouped: bool) -> tuple[int, int]:
    """How often the unit before `place` is repeated, and the place after the `*n`."""
    if text[place : place + 1] != "*":
        if grouped:
            raise _bad(text, place - 1, "a group is followed by * and the number of repeats")
        return 1, place
    end = place + 1
    while text[end : end + 1] in tuple("0123456789"):
        end += 1
    digits = text[place + 1 : end]
    if not digits or len(digits) > 6 or int(digits) < 1:
        raise _bad(text, place, "* is followed by the number of repeats, 1 to 999,999")
    return int(digits), end


def _bad(text: str, place: int, what: str) -> InputError:
    here = f"character {place + 1}, {shown(text[place])}" if place < len(text) else "its end"
    return InputError(f"{shown(text)}: at {here}: {what}", field=LAYOUT, allowed=_WORDS)
