"""How answers are printed: at least 80 columns in a pipe, colour in a terminal only, no blanks at the ends of lines."""

from __future__ import annotations

import io
import re
from typing import Any, Final

from rich.console import Console, RenderableType

LEAST: Final = 80  # columns of a pipe
_ESCAPE: Final = re.compile(r"\x1b\[[0-9;]*m")
_ENDS: Final = re.compile(r"(?m)(?: |\x1b\[[0-9;]*m)+$")


def show(answer: RenderableType, file: Any = None, *, least: int = LEAST) -> None:
    """Print an answer to a terminal or a pipe, as plain text that nothing in it marks up. least: columns of a pipe."""
    console = Console(file=file, markup=False, highlight=False, emoji=False)
    if not console.is_terminal:
        console.width = max(console.width, least)
    with console.capture() as captured:
        console.print(answer, crop=False)  # a command stands on one line, however long
    console.file.write(trimmed(captured.get()))
    console.file.flush()


def text(answer: RenderableType, width: int = LEAST) -> str:
    """The answer as plain text without colour codes."""
    file = io.StringIO()
    Console(file=file, width=width, no_color=True, force_terminal=False, markup=False, emoji=False).print(
        answer, highlight=False, crop=False
    )
    return trimmed(file.getvalue()).rstrip()


def trimmed(printed: str) -> str:
    """Without blanks at the ends of lines; colour codes that stand among them stay."""
    return _ENDS.sub(lambda end: "".join(_ESCAPE.findall(end[0])), printed)
