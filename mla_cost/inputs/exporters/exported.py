"""What an export is made from, and what it says."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from mla_cost.inputs.config import ModelConfig
from mla_cost.inputs.settings import PlanSettings


class ExportedLaunch(NamedTuple):
    """A run: settings with the defaults of their scope, the model with its changes, devices of a node."""

    settings: PlanSettings
    model: ModelConfig
    per_node: int

    @property
    def world(self) -> int:
        """Ranks in all."""
        told = self.settings
        return told.tp * told.sp * told.pp * told.dp

    @property
    def nodes(self) -> tuple[int, int]:
        """Nodes, and ranks of each; one node holds fewer ranks than it has devices, or all hold equally many."""
        each = min(self.world, self.per_node)
        while self.world % each:
            each -= 1
        return self.world // each, each


class Exporter(NamedTuple):
    """A framework. trains: whether it trains one form alone; write: its text, and the settings that the text says."""

    name: str
    title: str
    trains: bool
    write: Callable[[ExportedLaunch], tuple[str, frozenset[str]]]


class Exported(NamedTuple):
    """The text for a framework. without: settings that it has no word for, with their values."""

    framework: str
    text: str
    without: tuple[tuple[str, object], ...]
