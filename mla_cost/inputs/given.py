"""What callers of the Python functions hand in, read before anything is priced: bounded, and refused by name."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any, Final

from mla_cost.errors import InputError

MOST_NAMES: Final = 10_000


def items(field: str, given: Any, *, most: int, allowed: str) -> list[Any]:
    """The items of an iterable, of which no more than `most` are taken.

    Raises:
        InputError: no iterable, or one of more.

    """
    if not isinstance(given, Iterable):
        raise InputError("must be a list", field=field, value=given, allowed=allowed)
    try:
        count = len(given)  # type: ignore[arg-type]
    except OverflowError:
        count = most + 1
    except TypeError:  # a generator; an array of no dims
        count = 0
    try:
        found = list(islice(given, most + 1)) if count <= most else []
    except TypeError:
        raise InputError("must be a list", field=field, value=given, allowed=allowed) from None
    if max(count, len(found)) > most:
        raise InputError("too many values", field=field, value=given, allowed=f"at most {most:,}: {allowed}")
    return found


def name(field: str, given: Any, allowed: str) -> str:
    """A name, or a path as text.

    Raises:
        InputError: anything else.

    """
    try:
        found = os.fspath(given)
    except TypeError:
        found = None
    if not isinstance(found, str):
        raise InputError("must be text", field=field, value=given, allowed=allowed)
    return found


def names(field: str, given: Any, allowed: str) -> tuple[str, ...]:
    """One name or several; None is none.

    Raises:
        InputError: what is neither text nor a path nor a list of them.

    """
    if given is None:
        return ()
    if isinstance(given, str | os.PathLike):
        return (name(field, given, allowed),)
    if isinstance(given, Mapping | bytes):
        raise InputError("must be a list", field=field, value=given, allowed=allowed)
    return tuple(name(field, each, allowed) for each in items(field, given, most=MOST_NAMES, allowed=allowed))
