"""Layers whose figures are arrays, for the functions of `mla_cost.pricing.stage`, which add up whatever they are."""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce
from typing import Any, NamedTuple

from mla_cost.language.numbers import maximum
from mla_cost.pricing.stage import Part


class _Bytes(NamedTuple):
    bytes: Any


class ArrayLayer:
    """A layer, or equal ones in a row, as far as a stage adds them up; its own evaluation too."""

    def __init__(
        self, saved: Any, forward: Any, backward: Any, gradients: Any, *, hidden: Any = 0, num_layers: Any = 1
    ) -> None:
        self.saved_bytes, self.hidden_bytes, self.num_layers = saved, hidden, num_layers
        self.forward, self.backward = _Bytes(forward), _Bytes(backward)
        self._gradients = gradients
        self.at = self

    def gradient_bytes(self) -> Any:
        """As an evaluation has them."""
        return self._gradients


def most(parts: Iterable[Part]) -> Any:
    """The most that any part has alive, point by point."""
    return reduce(maximum, (part.bytes for part in parts))
