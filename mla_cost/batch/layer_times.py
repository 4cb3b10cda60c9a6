"""How long layers take at many points: the rules of `timing` over arrays, a column for each distinct point."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from types import SimpleNamespace
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mla_cost.batch.matrices import Floats, Folded, Ints, Rows, evaluated, fold, fold_further, monomials_of, over_others
from mla_cost.batch.matrices import rows_of as coefficients
from mla_cost.batch.points import Points, distinct
from mla_cost.batch.programs import compiled_account
from mla_cost.batch.table import PricedGroup, Table
from mla_cost.inputs.config import DeviceConfig
from mla_cost.language.dims import follow_where_known, following
from mla_cost.language.machine import PROGRAMS
from mla_cost.language.polynomial import Monomial
from mla_cost.pricing.key import Key
from mla_cost.pricing.step_traffic import PHASES
from mla_cost.pricing.times import Pricing, pricing
from mla_cost.timing.placement import placement
from mla_cost.timing.work import PhaseTime, WorkAccount, timed, work_of

IN_LAYERS: Final = ("tp", "sp", "ep", "etp")  # axes over which layers exchange
_ALL: Final = "all"


class WorkRows(NamedTuple):
    """What a program runs as rows over monomials: every amount of its account. follows: symbols that do from others."""

    account: WorkAccount
    follows: tuple[str, ...]
    monomials: tuple[Monomial, ...]
    rows: Rows


@lru_cache(maxsize=PROGRAMS)
def work_rows(key: Key) -> WorkRows:
    """The rows of a program."""
    account = work_of(compiled_account(key).timeline)
    each = [over_others(amount) for amount in account.summed]
    monomials = monomials_of(each)
    follows = following(symbol for monomial in monomials for symbol in monomial)
    return WorkRows(account, follows, monomials, Rows(coefficients(each, monomials)))


@lru_cache(maxsize=PROGRAMS)
def _folded(key: Key, always: tuple[tuple[str, float], ...]) -> Folded:
    found = work_rows(key)
    return fold(found.monomials, (found.rows,), dict(always))


def amounts_of(key: Key, always: Mapping[str, float], values: Mapping[str, Any], size: int) -> list[Any]:
    """Every amount of a program at points; what is the same at all of them is a number.

    Valid until this thread evaluates another matrix.
    """
    folded = _folded(key, tuple(always.items()))
    here = {name: float(value) for name, value in values.items() if not isinstance(value, np.ndarray)}
    if any(symbol in here for monomial in folded.monomials for symbol in monomial):
        folded = fold_further(folded, here)
    own = np.array([bool(monomial) for monomial in folded.monomials])
    alike: NDArray[np.bool_] = ~np.any(folded.matrix[:, own], axis=1)
    constant = folded.matrix[:, ~own].sum(axis=1)
    if alike.all():
        return [float(amount) for amount in constant]
    varying = folded._replace(matrix=folded.matrix[~alike])
    rows = iter(evaluated(varying, values, size))
    return [float(amount) if same else next(rows) for same, amount in zip(alike, constant, strict=True)]


def phases(group: PricedGroup, key: Key, values: Mapping[str, Any], size: int, how: Pricing) -> dict[str, PhaseTime]:
    """Every phase of a layer. values: of symbols at `size` points of its group."""
    rows = work_rows(key)
    values = {**values, **follow_where_known({**group.always, **values}, rows.follows)}
    amounts = amounts_of(key, group.always, values, size)
    return timed(rows.account, amounts, how.on, how.causal, {**group.always, **values}, how.by)


class LayerTimes:
    """What every layer takes by way at its place, a column for each distinct point.

    codes: the column of each of the points; columns: of the table, for each. device, launches, links (by axis): by way,
    a row for each place of the table. Seconds, kernels.
    """

    def __init__(self, table: Table, points: Points, which: Ints, device: DeviceConfig) -> None:
        self._table, self._device = table, device
        strides = self._strides(points)
        found = distinct(which, *(each for each in strides if isinstance(each, np.ndarray)))
        self.codes: Ints = found.codes
        self.size = len(found.first)
        self.columns: Ints = which[found.first]
        self._degrees = points.fields(found.first)
        shape = (len(table.places), self.size)
        self.device: dict[str, Floats] = {way: np.zeros(shape) for way in PHASES}
        self.launches: dict[str, Floats] = {way: np.zeros(shape) for way in PHASES}
        self.links: dict[str, dict[str, Floats]] = {way: {} for way in PHASES}
        self.step_links: dict[Any, tuple[dict[str, float], dict[str, float]]] = {}  # for whoever asks further
        for group in table.groups:
            self._group(group)

    def _strides(self, points: Points) -> list[Any]:
        """What decides of how groups lie, beside what decides the table."""
        lie = placement(points.fields(), points.base.axis_order, 1)
        return [lie.strides[axis] for axis in IN_LAYERS]

    def _group(self, group: PricedGroup) -> None:
        """The columns of one structural key."""
        place = np.full(len(self._table.refused), -1)
        place[group.where] = np.arange(len(group.where))
        taken = place[self.columns]
        here: Ints = np.flatnonzero(taken >= 0)
        if not len(here):
            return
        taken = taken[here]
        values = {name: each[taken] if isinstance(each, np.ndarray) else each for name, each in group.values.items()}
        degrees = SimpleNamespace(**{name: column[here] for name, column in vars(self._degrees).items()})
        how = pricing(self._device, group.settings, "middle", self._table.chosen, degrees)
        known: dict[Key, dict[str, PhaseTime]] = {}  # who holds inputs and gradients takes no time
        for at, key in group.keys:
            alike = key._replace(input_held=False, gradient_held=False)
            if alike not in known:
                known[alike] = phases(group, key, values, len(here), how)
            found = known[alike]
            for way, parts in PHASES.items():
                self._put(at, here, way, [found[part] for part in parts])

    def _put(self, at: int, here: Ints, way: str, parts: list[PhaseTime]) -> None:
        for part in parts:
            self.device[way][at, here] += sum(part.device.values())
            self.launches[way][at, here] += part.launches
            for axis, seconds in part.links.items():
                into = self.links[way].setdefault(axis, np.zeros(self.device[way].shape))
                into[at, here] += seconds

    def chunk(self, counts: Ints, columns: Ints) -> dict[str, PhaseTime]:
        """A chunk of so many layers at each place, by way, as one phase each. columns: which of them."""
        there = np.flatnonzero(counts)
        times = counts[there].astype(np.float64)

        def summed(figure: Floats) -> Any:
            return times @ figure[there[:, None], columns]

        found = {"recompute": PhaseTime({}, {}, 0)}  # in backward's sums
        for way in PHASES:
            links = {axis: summed(each) for axis, each in self.links[way].items() if each[there].any()}
            found[way] = PhaseTime({_ALL: summed(self.device[way])}, links, summed(self.launches[way]))
        return found
