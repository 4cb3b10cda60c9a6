"""One measured figure beside its budget."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Figure:
    """A median with its spread; `budget` is an upper bound in the same unit, None for a figure that is only shown."""

    name: str
    value: float
    low: float
    high: float
    unit: str
    budget: float | None = None

    @property
    def verdict(self) -> str:
        if self.budget is None:
            return ""
        return "pass" if self.value <= self.budget else "over"
