"""Pickles that hold dicts, lists, tuples, strings, numbers, true, false and none: anything else is refused, not made.

Python's own unpickler (the one in Python, whose memo is a dict: that of C allocates as much as a file names) with every
instruction taken away that imports, calls or builds an object. Nothing of a file is run.
"""

from __future__ import annotations

import io
import pickle
from typing import Any, ClassVar, Final, NoReturn

from mla_cost.errors import InputError

_ADMITTED: Final = (
    *("PROTO", "FRAME", "STOP", "MARK", "POP", "POP_MARK", "DUP", "MEMOIZE"),
    *(
        "NONE",
        "NEWTRUE",
        "NEWFALSE",
        "INT",
        "BININT",
        "BININT1",
        "BININT2",
        "LONG",
        "LONG1",
        "LONG4",
        "FLOAT",
        "BINFLOAT",
    ),
    *("UNICODE", "BINUNICODE", "BINUNICODE8", "SHORT_BINUNICODE"),
    *("EMPTY_TUPLE", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3", "EMPTY_LIST", "LIST", "APPEND", "APPENDS"),
    *("EMPTY_DICT", "DICT", "SETITEM", "SETITEMS", "GET", "BINGET", "LONG_BINGET", "PUT", "BINPUT", "LONG_BINPUT"),
)
_CODES: Final[dict[int, str]] = {getattr(pickle, name)[0]: name for name in _ADMITTED}
_NAMES: Final = {
    value[0]: name
    for name, value in vars(pickle).items()
    if isinstance(value, bytes) and len(value) == 1 and name.isupper()
}
_BROKEN: Final = (
    pickle.UnpicklingError, EOFError, IndexError, KeyError, TypeError, ValueError, AttributeError, UnicodeDecodeError,
    OverflowError, MemoryError, RecursionError,
)  # fmt: skip
_Base: Any = pickle._Unpickler  # the one in Python has no public name


def loads(data: bytes, file: str) -> Any:
    """The value of a pickle.

    Raises:
        InputError: a pickle that asks for anything but plain values, or that is broken.

    """
    try:
        return _Plain(io.BytesIO(data)).load()
    except _Refused as error:
        raise InputError(str(error), file=file, allowed="dicts, lists, strings and numbers") from None
    except _BROKEN as error:
        raise InputError(f"not a whole pickle ({type(error).__name__})", file=file) from None


class _Refused(Exception):  # noqa: N818  # an answer, told as an InputError
    """What a pickle asks for and does not get."""


def _refuse(code: int) -> Any:
    def refuse(_: Any) -> NoReturn:
        name = _NAMES.get(code, f"instruction {code}")
        raise _Refused(f"this pickle asks for more than plain values ({name}), which is refused")

    return refuse


class _Plain(_Base):  # type: ignore[misc]  # the base has no types
    dispatch: ClassVar[dict[int, Any]] = {
        code: _Base.dispatch[code] if code in _CODES else _refuse(code) for code in range(256)
    }

    def find_class(self, module: str, name: str) -> NoReturn:
        raise _Refused(f"this pickle asks for {module}.{name}"[:100])

    def persistent_load(self, _: Any) -> NoReturn:
        raise _Refused("this pickle asks for an object of its program")
