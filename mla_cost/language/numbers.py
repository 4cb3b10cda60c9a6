"""What rules need beyond arithmetic where their numbers may be arrays; numbers alone never import numpy."""

from __future__ import annotations

from typing import Any


def where(condition: Any, yes: Any, no: Any) -> Any:
    """`yes` where the condition holds, else `no`."""
    if isinstance(condition, bool):
        return yes if condition else no
    import numpy as np

    return np.where(condition, yes, no)


def maximum(first: Any, second: Any) -> Any:
    """The larger of two."""
    return where(first < second, second, first)
