"""How answers are printed: 80 columns in a pipe or what COLUMNS says, colour in a terminal only, no blank ends."""

from __future__ import annotations

import io
import os
import re
from typing import Any, Final

from rich.console import Console, RenderableType

PIPE: Final = 80  # columns of a pipe: the same whatever terminal it was started in
_NARROWEST: Final = 40
_ESCAPE: Final = re.compile(r"\x1b\[[0-9;]*m")
_ENDS: Final = re.compile(r"(?m)(?: |\x1b\[[0-9;]*m)+$")


def show(answer: RenderableType, file: Any = None, *, pipe: int = PIPE) -> None:
    """Print an answer to a terminal or a pipe, as plain text that nothing in it marks up. pipe: columns of a pipe."""
    console = Console(file=file, markup=False, highlight=False, emoji=False)
    console.width = max(_NARROWEST, console.width if console.is_terminal else columns(pipe))
    with console.capture() as captured:
        console.print(answer, crop=False)  # a command stands on one line, however long
    console.file.write(trimmed(captured.get()))
    console.file.flush()


def columns(pipe: int = PIPE) -> int:
    """Columns of what goes into a pipe: those that the caller's COLUMNS says, else `pipe`."""
    stated = os.environ.get("COLUMNS", "")
    return int(stated) if stated.isascii() and stated.isdigit() and 0 < int(stated) < 10_000 else pipe


def text(answer: RenderableType, width: int = PIPE) -> str:
    """The answer as plain text without colour codes."""
    file = io.StringIO()
    Console(file=file, width=width, no_color=True, force_terminal=False, markup=False, emoji=False).print(
        answer, highlight=False, crop=False
    )
    return trimmed(file.getvalue()).rstrip()


def trimmed(printed: str) -> str:
    """Without blanks at the ends of lines; colour codes that stand among them stay."""
    return _ENDS.sub(lambda end: "".join(_ESCAPE.findall(end[0])), printed)
