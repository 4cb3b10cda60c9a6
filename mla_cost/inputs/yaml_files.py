"""Strict, safe reading of a small YAML or JSON file into plain dicts, lists, strings, numbers, booleans and None.

Everything a file can do to surprise a reader is refused with one `InputError` that names the file and the line:
duplicate keys, tags, aliases, tabs, several documents, NaN, sizes over 1 MiB. Scalars follow YAML's core schema, not
YAML 1.1: `yes`, `0777` and `1:30` stay text, so no dimension is read as a number its author did not mean.
"""

from __future__ import annotations

import json
import math
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NoReturn

from mla_cost.errors import InputError, shown

MAX_FILE_BYTES: Final = 2**20
SUFFIXES: Final = (".yaml", ".yml", ".json")
_MAX_DEPTH: Final = 64
_MAX_DIGITS: Final = 20
_INT: Final = re.compile(r"[-+]?(?:0|[1-9][0-9]*)")
_WHOLE: Final = re.compile(r"[0-9]{1,15}[eE]\+?[0-9]{1,2}")  # 1e4: a count written short
_FLOAT: Final = re.compile(r"[-+]?(?:(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?|[0-9]+[eE][-+]?[0-9]+)")
_NOT_FINITE: Final = re.compile(r"[-+]?\.(?:inf|nan)|[-+]?(?:nan|inf|infinity)", re.IGNORECASE)
_WORDS: Final[dict[str, bool | None]] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}


def load_mapping(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The mapping that the file at `path` holds: JSON by the suffix .json, YAML by .yaml or .yml.

    Raises InputError, naming the file and where possible the line, for anything but one well-formed mapping in a
    regular UTF-8 file of at most 1 MiB.
    """
    file = os.fspath(path)
    suffix = Path(file).suffix.lower()
    if suffix not in SUFFIXES and not Path(file).is_dir():
        allowed = "names ending in .yaml, .yml or .json"
        raise InputError("the file name must say what it holds", file=file, allowed=allowed)
    text = read_text(file)
    return parse_json(text, file) if suffix == ".json" else parse_yaml(text, file)


def parse_yaml(text: str, file: str) -> dict[str, Any]:
    """The mapping in YAML `text`; `file` is only named in errors."""
    import yaml

    if text.lstrip().startswith("{"):
        raise InputError("this is JSON under a YAML name; name it .json, or write YAML", file=file)
    _refuse_tabs(text, file)
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        value = _Builder(iter(yaml.parse(text, Loader=loader)), file).document()
    except yaml.YAMLError as error:
        raise _yaml_error(error, file) from None
    return _mapping(value, file)


def parse_json(text: str, file: str) -> dict[str, Any]:
    """The mapping in JSON `text`; `file` is only named in errors."""
    try:
        value = json.loads(
            text,
            object_pairs_hook=lambda pairs: _unique(pairs, file),
            parse_int=lambda digits: _integer(digits, file, None),
            parse_float=lambda digits: _finite(digits, file, None),
            parse_constant=lambda word: _not_finite(word, file, None),
        )
    except json.JSONDecodeError as error:
        raise _json_error(error, text, file) from None
    except RecursionError:
        raise InputError("nested too deeply", file=file) from None
    return _mapping(value, file)


def read_text(file: str) -> str:
    data = _read_bytes(file)
    if len(data) > MAX_FILE_BYTES:  # it grew after it was measured
        raise _too_large(len(data), file)
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise InputError(f"not UTF-8 text: byte 0x{data[error.start]:02x}", file=file, line=line) from None
    if not text.strip():
        raise InputError("the file is empty", file=file)
    return text


@contextmanager
def _regular(file: str) -> Iterator[os.stat_result]:
    """What a regular file is, looked at before it is opened: no pipe is waited for. Failures of the system are told."""
    try:
        status = Path(file).stat()
        if stat.S_ISDIR(status.st_mode):
            raise InputError("this is a directory; name the file in it", file=file)
        if not stat.S_ISREG(status.st_mode):
            raise InputError("not a regular file", file=file)
        yield status
    except FileNotFoundError:
        raise InputError("no such file", file=file) from None
    except (OSError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"cannot be read ({getattr(error, 'strerror', None) or error})", file=file) from None


def _read_bytes(file: str) -> bytes:
    """All of a file, whose size is looked at before it is opened."""
    with _regular(file) as status:
        if status.st_size > MAX_FILE_BYTES:
            raise _too_large(status.st_size, file)
        with Path(file).open("rb") as stream:
            return stream.read(MAX_FILE_BYTES + 1)


_LOG_BYTES: Final = 2**24


def read_log(file: str) -> str:
    """The last 16 MiB of a log, whatever is not UTF-8 in it replaced.

    Raises:
        InputError: no regular file that can be read.

    """
    with _regular(file) as status, Path(file).open("rb") as stream:
        stream.seek(max(0, status.st_size - _LOG_BYTES))
        return stream.read(_LOG_BYTES).decode("utf-8", errors="replace")


def _too_large(size: int, file: str) -> InputError:
    return InputError(f"the file has {size:,} bytes", file=file, allowed=f"at most {MAX_FILE_BYTES:,}")


def _mapping(value: object, file: str) -> dict[str, Any]:
    if value is None:
        raise InputError("the file holds no value", file=file, allowed="one mapping of keys to values")
    if not isinstance(value, dict):
        raise InputError("the file must hold a mapping of keys to values", file=file, value=value)
    return value


def _refuse_tabs(text: str, file: str) -> None:
    position = text.find("\t")
    if position >= 0:
        line = text.count("\n", 0, position) + 1
        raise InputError("a tab; YAML is indented with spaces", file=file, line=line)


class _Builder:
    """Builds the value from the parser's events, in one pass, so that a tag or an alias is met before it acts."""

    def __init__(self, events: Iterator[Any], file: str) -> None:
        self._events = events
        self._file = file
        self._depth = 0

    def document(self) -> Any:
        event = self._after_markers()
        value = None if _kind(event) == "StreamEnd" else self._value(event)
        event = self._after_markers()
        if event is not None and _kind(event) != "StreamEnd":
            self._refuse("a second document in one file", event)
        return value

    def _after_markers(self) -> Any:
        markers = ("StreamStart", "DocumentStart", "DocumentEnd")
        return next((event for event in self._events if _kind(event) not in markers), None)

    def _value(self, event: Any) -> Any:
        kind = _kind(event)
        if kind == "Alias":
            self._refuse(f"the alias *{event.anchor}; write the value out", event)
        if event.tag is not None:
            self._refuse(f"the tag {shown(event.tag)}; only plain values are read", event)
        if kind == "Scalar":
            return self._scalar(event)
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            self._refuse(f"nested deeper than {_MAX_DEPTH} levels", event)
        value = self._mapping() if kind == "MappingStart" else self._list()
        self._depth -= 1
        return value

    def _list(self) -> list[Any]:
        values = []
        while _kind(event := next(self._events)) != "SequenceEnd":
            values.append(self._value(event))
        return values

    def _mapping(self) -> dict[Any, Any]:
        values: dict[Any, Any] = {}
        while _kind(event := next(self._events)) != "MappingEnd":
            key = self._key(event)
            if key in values:
                self._refuse(f"the key {key!r} is given twice", event)
            values[key] = self._value(next(self._events))
        return values

    def _key(self, event: Any) -> str | int:
        key = self._value(event)
        if isinstance(key, bool) or not isinstance(key, str | int):
            self._refuse(f"a key must be a word, not {shown(key)}", event)
        return key

    def _scalar(self, event: Any) -> Any:
        text: str = event.value
        if not event.implicit[0]:  # quoted
            return text
        line = event.start_mark.line + 1
        if text in _WORDS:
            return _WORDS[text]
        if _INT.fullmatch(text):
            return _integer(text, self._file, line)
        if _WHOLE.fullmatch(text):
            whole, _, tens = text.lower().partition("e")
            return int(whole) * 10 ** int(tens)
        if _FLOAT.fullmatch(text):
            return _finite(text, self._file, line)
        return _not_finite(text, self._file, line) if _NOT_FINITE.fullmatch(text) else text

    def _refuse(self, message: str, event: Any) -> NoReturn:
        raise InputError(message, file=self._file, **_at_mark(event.start_mark))


def _at_mark(mark: Any) -> dict[str, Any]:
    """Line and column of a mark of PyYAML, from 1."""
    return {"line": mark.line + 1, "column": mark.column + 1}


def _kind(event: Any) -> str:
    return type(event).__name__.removesuffix("Event")


def _integer(text: str, file: str, line: int | None) -> int:
    if len(text) > _MAX_DIGITS:
        raise InputError(f"the number {shown(text)} is too large", file=file, line=line)
    return int(text)


def _finite(text: str, file: str, line: int | None) -> float:
    number = float(text)
    return number if math.isfinite(number) else _not_finite(text, file, line)


def _not_finite(text: str, file: str, line: int | None) -> NoReturn:
    raise InputError(f"{shown(text)} is not a finite number", file=file, line=line)


def _unique(pairs: list[tuple[str, Any]], file: str) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise InputError(f"the key {twice!r} is given twice", file=file)
    return values


def _yaml_error(error: Any, file: str) -> InputError:
    """libyaml's own words about the spot where it stopped, on one line."""
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or getattr(error, "reason", None) or "unreadable"
    if "nesting depth" in problem:
        return InputError("nested too deeply", file=file, allowed=f"{_MAX_DEPTH} levels")
    return InputError(f"not valid YAML: {problem}", file=file, **({} if mark is None else _at_mark(mark)))


def _json_error(error: json.JSONDecodeError, text: str, file: str) -> InputError:
    if not text.lstrip().startswith(("{", "[")):
        return InputError("not JSON; a YAML file is named .yaml", file=file, line=error.lineno, column=error.colno)
    if error.pos >= len(text.rstrip()) or error.msg.startswith("Unterminated string"):
        return InputError("the JSON is cut off before it is complete", file=file, line=error.lineno, column=error.colno)
    return InputError(f"not valid JSON: {error.msg}", file=file, line=error.lineno, column=error.colno)
