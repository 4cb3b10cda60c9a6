"""What a rank of the worst stage sends and runs in one optimizer step."""

from __future__ import annotations

import numpy as np

from mla_cost.batch.holding import sums
from mla_cost.batch.matrices import Floats
from mla_cost.batch.points import distinct
from mla_cost.batch.tile import Tile, Worst


class Traffic:
    """Bytes of the points of a tile that are alive, in double precision. Amounts are `payload` and `wire`."""

    def __init__(self, tile: Tile, worst: Worst) -> None:
        self._tile, self._worst = tile, worst
        self._sums: dict[tuple[str, str], Floats] = {}
        self._counts = np.array([stage.counts for stage in tile.stages], np.float64)[worst.stage].T
        self._add_layers()
        self._add_passed()
        self._add_step()

    def total(self, amount: str, of: str = "all") -> Floats:
        """The sum of an amount over a mesh axis, over a phase, or over all."""
        found: Floats = self._sums.get((amount, of), np.zeros(self._tile.points.size))
        return found

    def flops(self) -> Floats:
        """Model and executed flops."""
        table, which = self._tile.table, self._tile.which
        found: Floats = (self._counts * table.flops[:, :, which]).sum(axis=1) * self._tile.times
        return found

    def _add(self, amount: str, axis: str, phase: str, column: Floats) -> None:
        for of in (axis, phase, "all"):
            self._sums[amount, of] = self._sums.get((amount, of), 0.0) + column

    def _add_layers(self) -> None:
        tile = self._tile
        for row, each in tile.table.sent.items():
            sent = (self._counts * each[:, tile.which]).sum(axis=0)
            self._add(row.amount, row.axis, row.phase, tile.times * sent)

    def _add_passed(self) -> None:
        """Hidden states to the next chunk and their gradients back, as `whole_model` counts them."""
        passes = np.array([stage.passes for stage in self._tile.stages])[self._worst.stage].T
        for phase, count in zip(("forward", "backward"), passes, strict=True):
            for amount in ("payload", "wire"):
                self._add(amount, "pp", phase, self._tile.times * self._tile.hidden_states * count)

    def _add_step(self) -> None:
        """What keeps weights equal."""
        tile, holding, own = self._tile, self._tile.shared.holding, self._tile.groups
        for ranks, codes, ask in (
            (own.dense, own.dense_codes, holding.dense_sent),
            (own.expert, own.expert_codes, holding.expert_sent),
        ):
            each = distinct(self._worst.stage, codes)
            looked = [sums(ask(tile.stages[self._worst.stage[at]], ranks[codes[at]])) for at in each.first]
            for amount, axis in dict.fromkeys(key for found in looked for key in found):
                column = np.array([float(found.get((amount, axis), 0)) for found in looked])[each.codes]
                self._add(amount, axis, "step", column)
