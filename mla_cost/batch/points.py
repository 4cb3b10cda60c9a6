"""Points as columns: numbers as arrays, every other field as small ints, and the distinct settings among them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from types import SimpleNamespace
from typing import Any, Final, NamedTuple

import numpy as np

from mla_cost.batch.matrices import Ints
from mla_cost.errors import InputError
from mla_cost.inputs.settings import PlanSettings

DEGREES: Final = ("tp", "sp", "pp", "ep", "etp", "dp")
NUMBERS: Final = (
    *("seq_len", "micro_batch", *DEGREES, "micro_batches", "virtual_stages", "vocab_multiple", "loss_chunks"),
)
# fields that are no numbers, by who reads them; a field that is not listed is taken to be read by all
_STATES: Final = frozenset({"sharding", "gradient_dtype", "moment_dtype"})
_PIPELINE: Final = frozenset(
    {"first_layers", "last_layers", "pipeline_layout", "micro_batch_group", "schedule", "stage"}
)
_LAYERS: Final = frozenset(
    {
        *("scheme", "kernel", "v_layout", "value_padding", "attention_layout", "softmax_dtype", "mask", "norm"),
        "names",
        *("causal", "remat", "dispatcher", "shared_overlap", "rope_fusion", "cross_entropy"),
        "imbalance_percent",
    }
)
_BOTH: Final = frozenset({"dtype", "main_weights", "down_projections"})  # layers and states read them
_VERDICT: Final = frozenset({"other_memory", "reserve", "fragmentation_percent"})
NOT_OF_LAYERS: Final = _STATES | _PIPELINE | _VERDICT
NOT_OF_PIPELINES: Final = _STATES | _LAYERS | _BOTH | _VERDICT
NOT_OF_STATES: Final = _LAYERS | _PIPELINE | _VERDICT
# buffers outside torch, and ZeRO's bucket
_RESERVED: Final = frozenset({"dispatcher", "sharding", "dtype", "gradient_dtype"})
NOT_OF_VERDICTS: Final = (_STATES | _LAYERS | _PIPELINE | _BOTH) - _RESERVED


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
    _, first, codes = np.unique(key, return_index=True, return_inverse=True)
    return Distinct(first, codes)


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

    def choices(self, ignored: frozenset[str]) -> Choices:
        """The distinct settings in what is no number; the fields `ignored` stay as the plan has them."""
        read = {name: column for name, column in self.coded.items() if name not in ignored}
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
