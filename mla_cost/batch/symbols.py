"""The values of symbols at many points, and which points share the structure of their programs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

import numpy as np

from mla_cost.batch.matrices import Floats, Ints
from mla_cost.batch.points import alike, distinct, size_marks
from mla_cost.inputs.config import ModelConfig
from mla_cost.language.dims import FLAT, QUOTIENTS, STRUCTURAL, follow
from mla_cost.language.program import Scheme
from mla_cost.pricing.resolve import (
    inner_values,
    layer_rows,
    layer_sizes,
    received_rows,
    received_values,
    symbol_values,
    token_values,
)

TOKENS: Final = frozenset({"D", "a"})
_DEGREES: Final = ("tp", "sp", "ep", "etp")


class Symbols(NamedTuple):
    """shared: what every point of a model has alike. own: an array each."""

    shared: dict[str, int]
    own: dict[str, Ints]

    def floats(self, where: Any) -> dict[str, Any]:
        """The arrays of some points in double precision."""
        return {name: column[where].astype(np.float64) for name, column in self.own.items()}


class Imbalance(NamedTuple):
    """How unevenly tokens are routed: the distinct settings among points, and which of them each point has."""

    values: tuple[int | str, ...]
    codes: Ints


def symbols(model: ModelConfig, fields: Any, imbalance: Imbalance, nested: Iterable[Scheme] = ()) -> Symbols:
    """Every base symbol but those of tokens. fields: arrays under the names of a plan's fields, which divide evenly.

    nested: schemes with groups inside groups, whose symbols count where there are any.
    """
    found: dict[str, Any] = {**symbol_values(model, fields), **layer_sizes(model, fields)}
    found |= received_values(_received(model, fields, imbalance), fields.ep)
    grouped = next(iter(nested), None)
    found |= inner_values(grouped, found, fields.sp_inside) if grouped else {}
    found |= follow(found, QUOTIENTS if grouped else FLAT)
    own = {name: value for name, value in found.items() if isinstance(value, np.ndarray)}
    return Symbols({name: value for name, value in found.items() if name not in own}, own)


def _received(model: ModelConfig, fields: Any, imbalance: Imbalance) -> Ints:
    """The symbol R, for all points of a degree and an imbalance at once."""
    rows, found = layer_rows(fields), np.empty(len(fields.ep), np.int64)
    each = distinct(fields.ep, imbalance.codes)
    for code, at in enumerate(each.first):
        mine = each.codes == code
        found[mine] = received_rows(model, int(fields.ep[at]), imbalance.values[imbalance.codes[at]], rows[mine])
    return found


def tokens(model: ModelConfig, fields: Any, imbalance: Imbalance) -> dict[str, Floats]:
    """The symbols of tokens, worked out once for each count of rows and ranks: exact fractions are no arrays."""
    rows = layer_rows(fields)
    found = distinct(fields.ep, imbalance.codes, rows)
    each = [
        token_values(model, int(fields.ep[at]), imbalance.values[imbalance.codes[at]], int(rows[at]))
        for at in found.first
    ]
    return {name: np.array([values[name] for values in each], np.float64)[found.codes] for name in sorted(TOKENS)}


def structure(own: Mapping[str, Any], fields: Any) -> Ints:
    """A number per point: points with the same one agree in every size that structure may depend on, 0, 1 or more."""
    degrees = (getattr(fields, degree) == 1 for degree in _DEGREES)
    return alike((*degrees, *structural_marks(own)), len(fields.tp))


def structural_marks(values: Mapping[str, Any]) -> Iterator[Any]:
    """Truth values of sizes, on which structure depends; symbols that are the same array are asked once."""
    yield from size_marks({id(values[name]): values[name] for name in STRUCTURAL if name in values}.values())


def structural(scheme: Scheme) -> tuple[str, ...]:
    """What of STRUCTURAL follows from other sizes, in an order to work out: heads only where they are divided."""
    without = () if scheme.divides_heads else ("l",)
    return tuple(name for name in (QUOTIENTS if scheme.inside else FLAT) if name in STRUCTURAL and name not in without)
