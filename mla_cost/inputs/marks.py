"""Where a field stands in its file: line and column, by the marks that PyYAML's nodes keep. JSON is read as YAML."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

from mla_cost.errors import InputError

_ENTRY: Final = re.compile(r", entry (\d+)(?:: )?")
_LONGEST: Final = 2**18  # characters; a larger file is told by its name alone


class TextPlace(NamedTuple):
    """A place in a text, both counted from 1."""

    line: int
    column: int


@contextmanager
def marked(file: str | None) -> Iterator[None]:
    """Errors about fields of `file` are raised with line and column, where the file can be read and has the field."""
    try:
        yield
    except InputError as error:
        if file is None:
            raise
        raise _placed(error, file) from None


def _placed(error: InputError, file: str) -> InputError:
    every = error.every()
    mine = [each for each in every if each.file == file and each.field and each.line is None]
    if not mine:
        return error
    root = _composed(file)
    places = {id(each): _place(root, each) for each in mine} if root is not None else {}
    first, *further = [_moved(each, places.get(id(each))) for each in every]
    return first.beside(further)


def _moved(error: InputError, place: TextPlace | None) -> InputError:
    return error if place is None else error.placed(*place)


def _composed(file: str) -> Any:
    """The nodes of a file; None where it cannot be had."""
    import yaml

    from mla_cost.inputs.yaml_files import read_text

    try:
        text = read_text(file)
        # a tab is a blank of JSON and none of YAML's; one for the other leaves every column where it is
        return None if len(text) > _LONGEST else yaml.compose(text.replace("\t", " "), Loader=yaml.SafeLoader)
    except (InputError, yaml.YAMLError, RecursionError):
        return None


def _place(root: Any, error: InputError) -> TextPlace | None:
    """The place of a field: of its value, of a key that should not be there, of the mapping where one is missing."""
    value, key = root, None
    for part in _ENTRY.sub(r".\1.", error.field or "").strip(".").split("."):
        found = _inside(value, part)
        if found is None:
            break
        key, value = found
    if key is None:
        return None
    mark = (key if error.message.startswith(("unknown key", "this key is missing")) else value).start_mark
    return TextPlace(mark.line + 1, mark.column + 1)


def _inside(node: Any, part: str) -> tuple[Any, Any] | None:
    """The key and the value of an entry; the entry of a list is told by its number from 1, and is its own key."""
    if type(node).__name__ == "SequenceNode":
        at = int(part) - 1 if part.isdigit() else -1
        return (node.value[at], node.value[at]) if 0 <= at < len(node.value) else None
    entries = node.value if type(node).__name__ == "MappingNode" else ()
    return next(((key, value) for key, value in entries if key.value == part), None)
