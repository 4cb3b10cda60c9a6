"""Pictures as files: the same bytes for the same figures."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def save(figure: Any, path: Path) -> None:
    """Write a matplotlib figure as the file's name says: no date in it, and no names that are drawn by chance."""
    from matplotlib import rc_context

    with rc_context({"svg.hashsalt": "mla-cost"}):
        figure.savefig(path, metadata={"Date": None} if path.suffix.lower() == ".svg" else None)
