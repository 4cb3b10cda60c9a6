"""What is wrong with a command line, in the one-line form of every other message. Imported when something is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mla_cost.errors import UNSET, InputError


def as_input_error(error: Any, given: Sequence[str]) -> InputError:
    """The usage error of typer (or of click, which older releases hand out) with the option and the value it names."""
    option = getattr(error, "option_name", None)
    if getattr(error, "possibilities", None) is not None or type(error).__name__ == "NoSuchOption":
        return InputError(f"unknown option {option}", nearest=error.possibilities or (), allowed=_help(error))
    options = list(getattr(getattr(error, "param", None), "opts", ()))
    value = _value(options, given)
    if value is not UNSET:
        message = "must be a whole number" if "integer" in error.message else _sentence(error.message)
        return InputError(message, field=options[0], value=value)
    return InputError(_sentence(error.format_message()), allowed=_help(error))


def _help(error: Any) -> str | None:
    return None if error.ctx is None else f"what `{error.ctx.command_path} --help` lists"


def _value(options: Sequence[str], given: Sequence[str]) -> Any:
    """What the user wrote for the option; UNSET for an argument, which has no name to look for."""
    for word, following in zip(given, [*given[1:], UNSET], strict=True):
        name, equals, value = word.partition("=")
        if name.startswith("-") and name in options:
            return value if equals else following
    return UNSET


def _sentence(text: str) -> str:
    line = " ".join(text.split()).removesuffix(".")
    return line[:1].lower() + line[1:]
