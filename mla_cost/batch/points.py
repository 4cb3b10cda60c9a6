"""Points as columns: numbers as arrays, every other field as small ints, and the distinct settings among them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from types import SimpleNamespace
from typing import Any, Final, NamedTuple

import numpy as np

from mla_cost.batch.matrices import Ints
from mla_cost.declared import defaults
from mla_cost.declared.shardings import SHARDINGS
from mla_cost.errors import InputError
from mla_cost.inputs.settings import PlanSettings
from mla_cost.inputs.table import TABLE, ignored_by

DEGREES: Final = ("tp", "sp", "pp", "ep", "etp", "dp")
NUMBERS: Final = tuple(row.name for row in TABLE.values() if "model" in row.numbers)
# what each part of pricing does not depend on, of the fields that are no numbers
NOT_OF_LAYERS: Final = ignored_by("layers")
NOT_OF_PIPELINES: Final = ignored_by("pipelines")
NOT_OF_STATES: Final = ignored_by("states")
NOT_OF_VERDICTS: Final = ignored_by("verdicts")


def _as_gathered(name: str) -> str:
    """Of the ways to shard, what layers and pipelines tell apart: those that gather weights unit by unit."""
    return name if name in SHARDINGS and SHARDINGS[name].gathers is not None else defaults.SHARDING


# values that some parts of pricing do not tell apart
ALIKE: Final[Mapping[str, Callable[[Any], Any]]] = {"sharding": _as_gathered}

_BITS: Final = 62  # of a whole number, as marks
_FEW: Final = 8  # keys to a point, up to which a table of them is quicker than sorting


class Coded(NamedTuple):
    """A column of anything: the distinct values, and which of them each point has."""

    values: tuple[Any, ...]
    codes: Ints


class Choices(NamedTuple):
    """The distinct settings among points: one for each, and which of them each point has."""

    settings: tuple[PlanSettings, ...]
    codes: Ints


class Distinct(NamedTuple):
    """The distinct rows of some columns: the first point of each, and which of them each point is."""

    first: Ints
    codes: Ints


def distinct(*columns: Ints) -> Distinct:
    """The distinct rows of whole numbers from 0 up."""
    key, most = columns[0], int(columns[0].max(initial=0))
    for column in columns[1:]:
        width = int(column.max(initial=0)) + 1
        if (most + 1) * width >= 1 << 62:
            key = np.unique(key, return_inverse=True)[1]
            most = int(key.max(initial=0))
        key, most = key * width + column, (most + 1) * width - 1
    if most < _FEW * len(key):
        return _few(key, most)
    _, first, codes = np.unique(key, return_index=True, return_inverse=True)
    return Distinct(first, codes)


def _few(key: Ints, most: int) -> Distinct:
    """As `np.unique`, without sorting: of one place written to several times, the last is what stays."""
    first = np.full(most + 1, -1)
    first[key[::-1]] = np.arange(len(key))[::-1]
    present = np.flatnonzero(first >= 0)
    codes = np.empty(most + 1, np.int64)
    codes[present] = np.arange(len(present))
    return Distinct(first[present], codes[key])


def alike(marks: Iterable[Any], size: int) -> Ints:
    """A number per point: points with the same one agree in all marks. marks: truth values; scalars tell none apart."""
    codes: Ints = np.zeros(size, np.int64)
    bit = 0
    for mark in marks:
        if not isinstance(mark, np.ndarray) or not mark.any() or mark.all():
            continue
        if bit == _BITS:
            codes = np.unique(codes, return_inverse=True)[1]
            bit = int(codes.max()).bit_length()
        codes += mark * np.int64(1 << bit)
        bit += 1
    return codes


def size_marks(sizes: Iterable[Any]) -> Iterator[Any]:
    """All that structure may depend on of a size: whether it is 1, whether it is 0. A number is alike everywhere."""
    for size in sizes:
        if isinstance(size, np.ndarray):
            yield size == 1
            yield size == 0


def groups(codes: Ints) -> Iterator[Ints | None]:
    """The points of each code, in order of the codes; None for all of them."""
    if (codes == codes[0]).all():
        yield None
        return
    for each in np.flatnonzero(np.bincount(codes)) if codes.max() < len(codes) else np.unique(codes):
        yield np.flatnonzero(codes == each)


class Points:
    """Settings of a plan, and the columns of what differs from point to point."""

    def __init__(self, settings: PlanSettings, columns: Mapping[str, Any]) -> None:
        self.base = settings
        self.size = _size(columns)
        self.numbers: dict[str, Ints] = {}
        for name in NUMBERS:
            given = columns.get(name)
            self.numbers[name] = (
                np.full(self.size, getattr(settings, name), np.int64) if given is None else np.asarray(given, np.int64)
            )
        self.coded = {name: _coded(given) for name, given in columns.items() if name not in NUMBERS}

    def __getitem__(self, name: str) -> Ints:
        return self.numbers[name]

    def choices(self, ignored: frozenset[str], alike: Mapping[str, Callable[[Any], Any]] | None = None) -> Choices:
        """The distinct settings in what is no number; the fields `ignored` stay as the plan has them.

        alike: of fields whose values are not all told apart, the one that stands for a value.
        """
        read = {name: column for name, column in self.coded.items() if name not in ignored}
        for name, one in (alike or {}).items():
            if name in read:
                read[name] = _joined(read[name], one)
        if not read:
            return Choices((self.base,), np.zeros(self.size, np.int64))
        found = distinct(*(column.codes for column in read.values()))
        return Choices(tuple(self._chosen(read, int(at)) for at in found.first), found.codes)

    def _chosen(self, read: Mapping[str, Coded], at: int) -> PlanSettings:
        return self.base.model_copy(update={name: column.values[column.codes[at]] for name, column in read.items()})

    def settings(self, at: int) -> PlanSettings:
        """One point as a plan would hold it."""
        chosen = self._chosen(self.coded, at)
        return self.with_numbers(chosen, at)

    def with_numbers(self, settings: PlanSettings, at: int) -> PlanSettings:
        """Settings with the numbers of one point."""
        return settings.model_copy(update={name: int(column[at]) for name, column in self.numbers.items()})

    def fields(self, where: Any = slice(None)) -> Any:
        """The numbers of some points under the names of a plan's fields, each an array."""
        return SimpleNamespace(**{name: column[where] for name, column in self.numbers.items()})

    def part(self, where: Any) -> Points:
        """Some of the points."""
        columns: dict[str, Any] = {name: column[where] for name, column in self.numbers.items()}
        columns |= {name: Coded(column.values, column.codes[where]) for name, column in self.coded.items()}
        return Points(self.base, columns)

    @cached_property
    def stage_ranks(self) -> Ints:
        """Ranks of one pipeline stage."""
        return self["tp"] * self["sp"] * self["dp"]


def _joined(column: Coded, one: Callable[[Any], Any]) -> Coded:
    """A column in which values that the same one stands for are that one."""
    stands = [one(value) for value in column.values]
    values = tuple(dict.fromkeys(stands))
    return Coded(values, np.array([values.index(value) for value in stands], np.int64)[column.codes])


def _size(columns: Mapping[str, Any]) -> int:
    sizes = {name: len(given.codes if isinstance(given, Coded) else given) for name, given in columns.items()}
    if len(set(sizes.values())) > 1:
        raise InputError(f"columns of one length are needed, not {sizes}", field="columns")
    for name in columns:
        if name not in PlanSettings.model_fields:
            raise InputError("a plan has no such field", field=name)
    return next(iter(sizes.values()), 1)


def _coded(given: Coded | Sequence[Any]) -> Coded:
    if isinstance(given, Coded):
        return given
    place: dict[Any, int] = {}
    codes = [place.setdefault(value, len(place)) for value in np.asarray(given, object).tolist()]
    return Coded(tuple(place), np.array(codes, np.int64))
