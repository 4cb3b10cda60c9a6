"""What is alive beside activations while weights are gathered unit by unit: one rule, over numbers or arrays.

A unit is a layer, an end or a module at its place in a chunk. What each moment of it holds is in the declaration of the
sharding (`mla_cost.declared.states.Gathering`); here its terms meet the sizes of the units around.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from mla_cost.declared.states import Alive, Gathering
from mla_cost.language.machine import DTYPE_BYTES
from mla_cost.mesh.degrees import Parallel
from mla_cost.weights.held import Flat, RankParameters
from mla_cost.weights.states import FULL, StateSettings, padded_elements, parts_of

TITLES = {
    "gathered": "weights gathered",
    "arriving": "weights as they arrive",
    "rearranged": "weights before they are put in order",
    "lingering": "a gradient before it was put in order",
    "gradients": "gradients before they are reduced",
    "reduced": "gradients as they are reduced",
    "part": "this rank's part of reduced gradients",
    "cast": "that part in fp32",
}


class Unit(NamedTuple):
    """Bytes of one unit, numbers or arrays, by the names that `Alive` has for them."""

    gathered: Any
    arriving: Any
    rearranged: Any
    lingering: Any
    reduced: Any
    part: Any
    cast: Any
    gradients: Any = 0


class Units(NamedTuple):
    """The units of a chunk in order, and what their moments hold."""

    row: Gathering
    each: Sequence[Unit]

    def alive(self, terms: Sequence[Alive], place: int) -> Iterator[tuple[str, Any]]:
        """What is alive beside layers at a moment of the unit at a place, by title."""
        for term in terms:
            first, last = max(0, place + term.first), min(len(self.each) - 1, place + term.last)
            for unit in self.each[first : last + 1]:
                yield TITLES[term.what], term.times * getattr(unit, term.what)


def unit_of(held: RankParameters, parallel: Parallel, keeping: StateSettings) -> Unit:
    """The bytes of a unit of these weights, without its gradients."""
    every = [_of(flat, parts_of(flat, parallel, keeping), keeping) for flat in held.trained]
    nothing = Unit(*(0 for _ in Unit._fields))
    return Unit(*map(sum, zip(nothing, *every, strict=True)))


def _of(flat: Flat, ranks: int, keeping: StateSettings) -> Unit:
    size, summed = DTYPE_BYTES[flat.dtype], DTYPE_BYTES[keeping.gradient_dtype]
    whole = padded_elements(flat, ranks, keeping.row)
    moved = [piece.padded(ranks) for piece, count in flat.pieces for _ in range(count) if piece.rearranged(ranks)]
    part = whole // ranks
    return Unit(
        gathered=whole * size,
        arriving=whole * size * (ranks > 1),
        rearranged=sum(moved) * size,
        lingering=min(moved, default=0) * size,
        reduced=whole * summed,
        part=part * summed,
        cast=part * DTYPE_BYTES[FULL] * (keeping.gradient_dtype != FULL),
    )
