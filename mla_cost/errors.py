"""The one error a user can cause: what was wrong, where, what is allowed and what was probably meant."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, NamedTuple

_LONGEST_SHOWN: Final = 60
UNSET: Final[Any] = object()
_DENIALS: Final = (
    "no such",
    "no row",
    "no program",
    "unknown",
    "is no ",
    "selects",
    "does not",
    "contradicts",
    "belongs",
)


class InputError(ValueError):
    """Bad input. `str(error)` is the whole message, on one line; the command line prints it and exits with 2.

    `message` says what is wrong. The keywords say where (`file`, `line`, `field`), what was found (`value`), what
    is `allowed`, and the `nearest` valid names; each is kept as an attribute and printed when given. `column` goes with
    `line`. `further`: other faults of the same input, of which the text says how many there are.
    """

    def __init__(
        self,
        message: str,
        *,
        file: str | None = None,
        line: int | None = None,
        column: int | None = None,
        field: str | None = None,
        value: Any = UNSET,
        allowed: str | None = None,
        nearest: Iterable[str] = (),
    ) -> None:
        self.message = message
        self.file = file
        self.line = line
        self.column = column
        self.further: tuple[InputError, ...] = ()
        self.field = field
        self.value = value
        self.allowed = allowed
        self.nearest = tuple(nearest)
        super().__init__(self._text())

    def every(self) -> tuple[InputError, ...]:
        """This fault and the further ones, each on its own."""
        return (self.beside(()), *self.further)

    def beside(self, further: Iterable[InputError]) -> InputError:
        """The same fault with others beside it."""
        found = self.placed(self.line, self.column)
        found.further = tuple(further)
        if found.further:
            found.args = (f"{found.args[0]} (and {len(found.further)} more)",)
        return found

    def placed(self, line: int | None, column: int | None) -> InputError:
        """The same fault at a place of its file."""
        told = {name: getattr(self, name) for name in ("file", "field", "value", "allowed", "nearest")}
        return InputError(self.message, line=line, column=column, **told)

    def to_dict(self) -> dict[str, Any]:
        """The fault as plain data: where, what was found and what is allowed; None where there is no such thing."""
        found = None if self.value is UNSET else shown(self.value)
        place = {"file": self.file, "line": self.line, "column": self.column, "field": self.field}
        told = {"message": self.message, "found": found, "allowed": self.allowed, "nearest": list(self.nearest)}
        return {**place, **told}

    def at_editor(self) -> str:
        """`file:line:column: message`, as compilers print it and editors read it."""
        rest = self._told({"field": self.field})
        return f"{shown_path(self.file or '')}:{self.line or 1}:{self.column or 1}: {rest}"

    def _told(self, place: dict[str, Any]) -> str:
        told = {name: getattr(self, name) for name in ("value", "allowed", "nearest")}
        return str(InputError(self.message, **place, **told))

    def _where(self) -> str:
        column = "" if self.column is None else f", column {self.column}"
        line = None if self.line is None else f"line {self.line}{column}"
        file = None if self.file is None else shown_path(self.file)
        return "".join(f"{part}: " for part in (file, line, self.field) if part)

    def _text(self) -> str:
        denies = (
            self.message.startswith(_DENIALS) or " has no " in self.message
        )  # what is wrong, and not what it should be: "no such stage: 9"
        found = "" if self.value is UNSET else f"{': ' if denies else ', not '}{shown(self.value)}"
        allowed = "" if self.allowed is None else f"; allowed: {self.allowed}"
        meant = f"; did you mean {' or '.join(self.nearest)}?" if self.nearest else ""
        return _on_one_line(f"{self._where()}{self.message}{found}{allowed}{meant}")


def _on_one_line(text: str) -> str:
    """A message with what a terminal would act on escaped: names of keys are the user's own, too."""
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


class Problem(NamedTuple):
    """One broken rule of a plan: the setting to change, what is wrong, and what to change it to."""

    field: str
    message: str
    way_out: str

    @property
    def text(self) -> str:
        """One sentence for a verdict."""
        return f"{self.message}; {self.way_out}"


def shown(value: object) -> str:
    """`value` as one short printable line, whatever the user wrote (control characters escaped, long text cut)."""
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list | tuple | set | frozenset):
        return "a list"
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    if isinstance(value, int) and value.bit_length() > 4 * _LONGEST_SHOWN:
        return "a number of more than 70 digits"
    try:
        text = ascii(value[: 2 * _LONGEST_SHOWN] if isinstance(value, str | bytes) else value)
    except Exception:  # noqa: BLE001  (what an object of the caller's own says of itself)
        text = f"a {type(value).__name__}"
    if "\n" in text:
        text = " ".join(text.split())
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}..."


def shown_path(path: str) -> str:
    """`path` with control characters escaped and an absurd length cut, so that the message stays one line."""
    text = path if path.isprintable() else ascii(path)[1:-1]
    return text if len(text) <= 4 * _LONGEST_SHOWN else f"{text[: 4 * _LONGEST_SHOWN]}..."


def nearest(name: Any, names: Iterable[str], *, count: int = 3) -> tuple[str, ...]:
    """Up to `count` of `names` that look like `name`, best first; empty when nothing is close, or `name` is no text."""
    if not isinstance(name, str):
        return ()
    import difflib  # only a wrong name needs it

    return tuple(difflib.get_close_matches(name[:200], list(names), n=count, cutoff=0.6))


def install(extra: str) -> str:
    """How an extra is installed: from a checkout, as the README has it, since no index has the package."""
    return f'python3 -m pip install ".[{extra}]" in a checkout of mla-cost'
