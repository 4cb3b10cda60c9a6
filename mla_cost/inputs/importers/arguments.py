"""A list of command-line arguments: flags and their words, each taken at most once and the rest reported."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from mla_cost.errors import InputError, nearest
from mla_cost.inputs.importers.shell import UNKNOWN

_LARGEST: Final = 2**53


class Arguments:
    """Flags with their words. `used` grows as they are read; what is left is ignored, and reported."""

    def __init__(self, words: Iterable[str], file: str) -> None:
        self.file = file
        self.given: dict[str, list[str]] = {}
        self.used: set[str] = set()
        name = ""
        for word in words:
            if word.startswith("--") and len(word) > 2:
                name, equals, value = word.partition("=")
                name = name.replace("_", "-")
                self.given[name] = [value] if equals else []
            elif name:
                self.given[name].append(word)

    @classmethod
    def of_mapping(cls, data: Mapping[str, Any], file: str) -> Arguments:
        """Of `--flag: value` lines: true is a switch, a list is several words."""
        words: list[str] = []
        for name, value in data.items():
            if value is False or value is None:
                continue
            listed = value if isinstance(value, list | tuple) else [] if value is True else [value]
            words += [f"--{str(name).lstrip('-')}", *(word for each in listed for word in str(each).split())]
        return cls(words, file)

    def has(self, *names: str) -> str | None:
        """The first of these flags that is given, and is then used; None where none is."""
        found = next((name for name in names if name in self.given), None)
        if found is not None:
            self.used.add(found)
        return found

    def words(self, *names: str) -> list[str] | None:
        """The words of a flag."""
        found = self.has(*names)
        return None if found is None else self.given[found]

    def text(self, *names: str) -> str | None:
        """The one word of a flag.

        Raises:
            InputError: none, or one that a variable outside the file decides.

        """
        found = self.has(*names)
        if found is None:
            return None
        words = self.given[found]
        if not words:
            raise InputError("is given without a value", file=self.file, field=found)
        if UNKNOWN in words[0]:
            what = "is decided outside the file (the environment, a command, another script)"
            raise InputError(f"{what}; write its value into the file", file=self.file, field=found)
        return words[0]

    def number(self, *names: str) -> int | None:
        """The whole number of a flag.

        Raises:
            InputError: what is none.

        """
        text = self.text(*names)
        if text is None:
            return None
        digits = text.replace("_", "").removeprefix("+")
        if not digits.isascii() or not digits.isdigit() or len(digits) > 18 or int(digits) > _LARGEST:
            raise InputError("must be a whole number", file=self.file, field=self.has(*names), value=text)
        return int(digits)

    def choice(self, allowed: Iterable[str], *names: str) -> str | None:
        """One of a few words.

        Raises:
            InputError: another one.

        """
        text, words = self.text(*names), list(allowed)
        if text is not None and text not in words:
            raise InputError(
                "unknown value",
                file=self.file,
                field=self.has(*names),
                value=text,
                allowed=", ".join(words),
                nearest=nearest(text, words, count=1),
            )
        return text

    def said(self, name: str) -> str:
        """A flag as it was given."""
        return " ".join([name, *self.given[name][:4], *(["..."] if len(self.given[name]) > 4 else [])])

    def rest(self) -> list[str]:
        """The flags that nothing has used, in the order given."""
        return [name for name in self.given if name not in self.used]
