"""A sweep: a sized, lazy table of every form at every setting. Nothing is priced before it is asked for."""

from __future__ import annotations

import os
import pickle
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, Unpack

import numpy as np
from numpy.typing import NDArray

from mla_cost import api
from mla_cost.batch import cores
from mla_cost.batch.codes import ILLEGAL, MISSING, NONE
from mla_cost.batch.composed import require_equal
from mla_cost.declared import defaults
from mla_cost.declared.forms import FORMS
from mla_cost.errors import InputError, install, nearest, shown
from mla_cost.inputs.command import command_of
from mla_cost.inputs.config import validated
from mla_cost.inputs.given import items
from mla_cost.inputs.given import name as name_of
from mla_cost.inputs.given import names as names_of
from mla_cost.inputs.keywords import SettingKeywords
from mla_cost.inputs.settings import PlanSettings
from mla_cost.pricing.scopes import require_scope
from mla_cost.results import Plan, html
from mla_cost.results.columns import NAMES, OF_DEVICES, RANKS, TIMES, WORLD, Column
from mla_cost.studies.planned import plan_of
from mla_cost.studies.sweep.attention import AttentionSweep
from mla_cost.studies.sweep.axes import expand, is_glob
from mla_cost.studies.sweep.columns import Columns, stored, table, without
from mla_cost.studies.sweep.grid import Box, Choice, Grid, ModelGrid
from mla_cost.studies.sweep.joined import AnyAxis, all_axes
from mla_cost.studies.sweep.stages import Stages
from mla_cost.studies.workers import TaskExecutor, in_order, require_executor

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl
    import pyarrow as pa

Where = Mapping[str, Any] | Callable[[Columns], Any] | None
MOST_WANTED: Final = 100_000
LARGEST: Final = 2**63
_WANTED: Final = "a number, a name, or a list of them"
WORTH_A_JOURNEY: Final = 100_000  # points of a task for another machine
LEAST_TASKS: Final = 64
SAMPLE: Final = 8  # points of every run that the int evaluator prices again


class PointRange(NamedTuple):
    """Consecutive points, from `start`."""

    start: int
    columns: Columns


class Scope(Protocol):
    """What a scope prices: its figures, boxes of them, and single points by `plan`'s own functions."""

    @property
    def figures(self) -> tuple[Column, ...]:
        """The columns of numbers."""

    @property
    def fork_from(self) -> int:
        """Points from which several processes are worth it."""

    @property
    def compiles(self) -> bool:
        """Whether programs of a choice take long to compile beside pricing its points."""

    def fill(self, choice: Choice, box: Box, views: Columns) -> None:
        """Price a box. views: a row for each numeric point, a column for each device."""

    def expected(self, index: int) -> Mapping[str, Any]:
        """The figures and the status of a point, by `plan`'s own functions."""

    def reason(self, index: int, code: int | None) -> str:
        """Why a point is refused, in the words of `plan`."""


class Sweep:
    """Every point of a grid; a point is one form at one setting on one device. `len` counts them.

    Columns hold int64 numbers (-1 where a row is illegal: its status says so) or small ints that stand for `names`.
    Rows are in a fixed order: choices such as form and kernel vary slowest, then numbers, then devices.
    """

    def __init__(
        self,
        settings: PlanSettings,
        axes: Sequence[AnyAxis],
        executor: TaskExecutor | None = None,
        *,
        timed: bool = False,
    ) -> None:
        """executor: who prices what is asked for in full, in place of this machine's cores."""
        self._asked = settings, tuple(axes), timed
        self.executor = executor
        self.grid: Grid
        self.scope: Scope
        if settings.scope == "model":
            self.grid = grid = ModelGrid(settings, axes)
            self.scope = Stages(grid, timed=timed)
        else:
            self.grid = Grid(settings, axes)
            self.scope = AttentionSweep(self.grid, timed=timed)
        self.table = tuple(table(self.grid, self.scope.figures))

    def __len__(self) -> int:
        return len(self.grid)

    def __repr__(self) -> str:
        apart = [axis for axis in self.grid.axes if not any(axis.name in joint.names for joint in self.grid.joint)]
        each: list[AnyAxis] = [*apart, *self.grid.joint]
        axes = " x ".join(f"{axis.name} ({len(axis.values):,})" for axis in each)
        return f"<Sweep of {len(self):,} points: {axes}>"

    @cached_property
    def names(self) -> dict[str, tuple[str, ...]]:
        """What the small ints of a column stand for."""
        return {column.name: column.names for column in self.table if column.names is not None}

    @cached_property
    def assumed(self) -> dict[str, str]:
        """By fact, what stands for what a model's file leaves out and no axis goes over; of several models by name."""
        over = {axis.name.partition(".")[2] or axis.name for axis in self.grid.axes}
        over |= {"num_mtp_layers"} if "mtp" in over else set()
        several = len(self.grid.models) > 1
        return {
            f"{model.name}.{fact}" if several else fact: f"{model.name}: {words}" if several else words
            for model in self.grid.models
            for fact, words in api.assumed(self.grid.settings, model).items()
            if fact not in over
        }

    @property
    def left_out(self) -> str:
        """How many combinations are no points, since an expression has no whole number there; empty where none is."""
        return "; ".join(joint.told for joint in self.grid.joint if joint.left_out)

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the columns, in order."""
        return tuple(column.name for column in self.table)

    # ---- all of it

    def to_numpy(self, workers: int | None = None) -> Columns:
        """Every column in full. workers: processes, one for each core by default; 1 stays in this process."""
        if workers is not None and (type(workers) is not int or workers < 1):
            raise InputError("must be a number of processes", field="workers", value=workers, allowed="1 or more, null")
        if self.executor is not None:
            return self._joined()
        workers = workers or cores.available()
        size, boxes = len(self.grid.devices), self.grid.num_boxes
        fork = workers > 1 and boxes > 1 and len(self) >= self.scope.fork_from and cores.can_fork()
        found = {c.name: cores.shared(len(self), c.dtype) for c in self.table} if fork else self._empty(len(self))

        def work(numbers: range) -> None:
            for number in numbers:
                choice, box = self._task(number)
                start = (choice.number * self.grid.num_numbers + box.start) * size
                self._fill(choice, box, {name: c[start : start + box.size * size] for name, c in found.items()})

        if not (fork and cores.forked(work, boxes, min(workers, boxes), self._together(workers))):
            work(range(boxes))  # also where a process failed: what failed there is raised here
        for index in self._sample():
            require_equal(index, {name: column[index] for name, column in found.items()}, self.scope.expected(index))
        return found

    def _joined(self) -> Columns:
        """All chunks one after another."""
        found = self._empty(len(self))
        for chunk in self.chunks():
            for name, column in chunk.columns.items():
                found[name][chunk.start : chunk.start + len(column)] = column
        return found

    def _together(self, workers: int) -> int:
        """Boxes that one process should fill: those of a choice, where each costs and there are enough for all."""
        own = self.scope.compiles and self.grid.num_choices >= 2 * workers
        return self.grid.boxes_per_choice if own else 1

    def chunks(self, start: int = 0) -> Iterator[PointRange]:
        """The points in order, a bounded number at a time. start: a point at which a chunk starts."""
        self._require_point("start", start)
        sample = self._sample()
        first, last = self._box_at(start), self.grid.num_boxes
        if self.executor is None:
            found: Iterator[PointRange] = map(self.chunk, range(first, last))
        else:
            asked, step = pickle.dumps(self._asked), self._boxes_at_once()
            tasks = [(asked, at, min(at + step, last)) for at in range(first, last, step)]
            found = (part for parts in in_order(self.executor, _chunks_of, tasks) for part in parts)
        for chunk in found:
            yield self._checked(chunk, sample)

    def chunk(self, number: int) -> PointRange:
        """The points of one box, by its number among all."""
        size = len(self.grid.devices)
        choice, box = self._task(number)
        columns = self._empty(box.size * size)
        self._fill(choice, box, columns)
        return PointRange((choice.number * self.grid.num_numbers + box.start) * size, columns)

    def _boxes_at_once(self) -> int:
        """Boxes of a task: enough points to be worth a journey, and tasks enough to keep workers busy to the end."""
        points = max(1, len(self) // self.grid.num_boxes)
        return max(1, min(WORTH_A_JOURNEY // points, self.grid.num_boxes // LEAST_TASKS))

    def _checked(self, chunk: PointRange, sample: Sequence[int]) -> PointRange:
        count = len(chunk.columns["status"])
        for index in sample:
            if chunk.start <= index < chunk.start + count:
                row = {name: column[index - chunk.start] for name, column in chunk.columns.items()}
                require_equal(index, row, self.scope.expected(index))
        return chunk

    def _require_point(self, field: str, index: Any) -> None:
        if isinstance(index, bool) or not isinstance(index, int | np.integer):
            raise InputError("must be a whole number", field=field, value=index, allowed=f"0 to {len(self) - 1}")

    def _sample(self) -> list[int]:
        draw = random.Random()  # noqa: S311  (a check, no secret)
        return [draw.randrange(len(self)) for _ in range(SAMPLE)]

    def _task(self, number: int) -> tuple[Choice, Box]:
        choice, box = divmod(number, self.grid.boxes_per_choice)
        return self.grid.choice(choice), self.grid.box(box)

    def _box_at(self, start: int) -> int:
        """The number of the box that begins at a point."""
        choice, inside = divmod(start // len(self.grid.devices), self.grid.num_numbers)
        return choice * self.grid.boxes_per_choice + self.grid.box_at(inside)

    def _empty(self, count: int) -> Columns:
        return {column.name: np.empty(count, column.dtype) for column in self.table}

    # ---- one box

    def _fill(self, choice: Choice, box: Box, out: Columns) -> None:
        views = {name: column.reshape(box.size, len(self.grid.devices)) for name, column in out.items()}
        self._fill_settings(choice, box, views)
        self.scope.fill(choice, box, views)

    def _fill_settings(self, choice: Choice, box: Box, views: Columns) -> None:
        grid = self.grid
        for axis, at in grid.fields:
            values = grid.spread(f"column {axis.name}", stored(axis), at, box)
            for device in range(len(grid.devices)):
                views[axis.name][:, device] = values
        if grid.own_sp:
            views["sp"][:] = np.broadcast_to(grid.values(box)["P"], box.size)[:, None]
        views[RANKS][:] = 1
        for name in WORLD[grid.settings.scope]:
            views[RANKS][:] *= views[name] if name in views else getattr(grid.settings, name)
        for where, axis in zip(choice.at, grid.choices, strict=True):
            if axis.name not in NAMES:
                views[axis.name][:] = stored(axis)[where]
        views["form"][:] = self.names["form"].index(choice.form)
        views["scheme"][:] = self.names["scheme"].index(choice.settings.scheme or FORMS[choice.form].scheme)
        for at in range(len(grid.devices)):
            views["device"][:, at] = at

    # ---- rows

    def rows(self, chunk: PointRange) -> Iterator[dict[str, Any]]:
        """The rows of a chunk: names as text, None for a number that a row does not have, refusals in a sentence."""
        readable = [self.readable(column, chunk.columns[column.name]) for column in self.table]
        names = self.columns
        status, reason = chunk.columns["status"].tolist(), chunk.columns["reason"].tolist()
        for at, values in enumerate(zip(*readable, strict=True)):
            row = dict(zip(names, values, strict=True))
            row["reason"] = self.reason_of(chunk.start + at, reason[at]) if reason[at] else ""
            if status[at] in {ILLEGAL, NONE}:
                self._blank(row, status[at] == ILLEGAL)
            yield row

    def _blank(self, row: dict[str, Any], illegal: bool) -> None:
        for name in [column.name for column in self.scope.figures] if illegal else OF_DEVICES:
            row[name] = None

    def readable(self, column: Column, values: NDArray[Any]) -> list[Any]:
        """The values of a column as Python's own, small ints as the names they stand for."""
        found: list[Any] = values.tolist()
        names = column.names
        if names is None:
            if column.name in TIMES:
                number = int if column.name.endswith("_bytes") else float
                return [None if value == MISSING else number(value) for value in found]
            return [int(value) for value in found] if column.dtype == "float64" else found  # counts, all of them
        return [names[value] for value in found]

    def reason_of(self, index: int, code: int | None = None) -> str:
        """Why a point is refused, as `plan` says it; empty where it is not. code: its `reason`, if it is known."""
        return self.scope.reason(index, code)

    def row(self, index: int) -> dict[str, Any]:
        """One point as a row."""
        self._require_point("index", index)
        if not -len(self) <= index < len(self):
            raise InputError("no such point", field="index", value=index, allowed=f"0 to {len(self) - 1}")
        index %= len(self)
        number = index // len(self.grid.devices)
        choice, inside = divmod(number, self.grid.num_numbers)
        one = self.grid.one(inside)
        columns = self._empty(len(self.grid.devices))
        self._fill(self.grid.choice(choice), one, columns)
        start = number * len(self.grid.devices)
        return list(self.rows(PointRange(start, columns)))[index - start]

    def command(self, index: int) -> str:
        """The command line that plans one point: complete, to be run anywhere."""
        self.row(index)  # refuses an index that is none
        return command_of(self.grid.stated(index % len(self)))

    def plan(self, index: int) -> Plan:
        """The plan of one point, as its command prices it."""
        return plan_of(self.command(index))

    def __getitem__(self, index: int) -> dict[str, Any]:
        self._require_point("index", index)
        if not -len(self) <= index < len(self):  # what ends a loop over the points
            raise IndexError(f"{shown(index)} of {len(self)} points")
        return self.row(index)

    # ---- tables of other libraries

    def to_csv(self, path: str | os.PathLike[str] | None = None) -> str | None:
        """Every row as CSV, as `mla-cost sweep --output FILE.csv` writes it: as text, or to a file of that name."""
        from mla_cost.studies.sweep import output

        if path is None:
            return output.csv_of(self)
        output.save(self, Path(name_of("path", path, "the name of a .csv file")))
        return None

    def _repr_html_(self) -> str:
        """The first rows as a table, for notebooks."""
        return html.table(self.columns, [self[at] for at in range(min(len(self), html.MOST))], len(self))

    def to_arrow(self) -> pa.Table:
        """A pyarrow table: names as dictionaries, nulls where a row has no number (extra `arrow`)."""
        arrow = extra("pyarrow", "arrow")
        found = self.to_numpy()
        return arrow.table({c.name: self._arrow_column(arrow, c, found) for c in self.table})

    def arrow_chunk(self, chunk: PointRange) -> pa.Table:
        """A chunk as a pyarrow table."""
        arrow = extra("pyarrow", "arrow")
        return arrow.table({c.name: self._arrow_column(arrow, c, chunk.columns, chunk.start) for c in self.table})

    def _arrow_column(self, arrow: Any, column: Column, found: Columns, start: int = 0) -> Any:
        if column.name == "reason":
            return arrow.array(self.reasons(PointRange(start, found)), arrow.string())
        values = found[column.name]
        if column.names is not None:
            indices = arrow.array(values.astype(np.int32))
            return arrow.DictionaryArray.from_arrays(indices, arrow.array(column.names, arrow.string()))
        return arrow.array(values, mask=without(column, found))

    def to_pandas(self) -> pd.DataFrame:
        """A pandas data frame: names as categories, <NA> where a row has no number (extra `pandas`)."""
        pandas: Any = extra("pandas", "pandas")
        found = self.to_numpy()
        table = {c.name: self._pandas_column(pandas, c, found) for c in self.table}
        frame: pd.DataFrame = pandas.DataFrame(table)
        return frame

    def _pandas_column(self, pandas: Any, column: Column, found: Columns) -> Any:
        if column.name == "reason":
            return self.reasons(PointRange(0, found))
        values = found[column.name]
        if column.names is not None:
            return pandas.Categorical.from_codes(values, column.names)
        missing = without(column, found)
        kind = pandas.arrays.FloatingArray if column.dtype == "float64" else pandas.arrays.IntegerArray
        return values if missing is None else kind(values, missing)

    def to_polars(self) -> pl.DataFrame:
        """A polars data frame: names as enums, nulls where a row has no number (extra `polars`)."""
        polars: Any = extra("polars", "polars")
        found = self.to_numpy()
        frame: pl.DataFrame = polars.DataFrame([self._polars_column(polars, c, found) for c in self.table])
        return frame

    def _polars_column(self, polars: Any, column: Column, found: Columns) -> Any:
        if column.name == "reason":
            return polars.Series(column.name, self.reasons(PointRange(0, found)), dtype=polars.String)
        values = found[column.name]
        if column.names is not None:
            codes = polars.Series(column.name, values.astype(np.uint32))
            texts = polars.Series(list(column.names), dtype=polars.Enum(list(column.names)))
            return texts.gather(codes).alias(column.name)
        missing = without(column, found)
        series = polars.Series(column.name, values)
        return series if missing is None else series.set(polars.Series(missing), None)

    def reasons(self, chunk: PointRange) -> list[str]:
        """The reason of every row of a chunk; empty where a row is not refused."""
        codes = chunk.columns["reason"]
        texts = [""] * len(codes)
        for at in np.flatnonzero(codes).tolist():
            texts[at] = self.reason_of(chunk.start + at, int(codes[at]))
        return texts

    # ---- questions

    def best(
        self, by: str | Sequence[str] = "required_bytes", where: Where = None, per: str | Sequence[str] = ()
    ) -> Any:
        """The row with the smallest `by`; `-name` asks for the largest, several names break ties.

        where: a value or values for columns, as in {"status": ("fits", "tight"), "form": "all"}, or a function of the
        columns that gives a mask. Illegal rows never win. Returns None where no row is left.
        per: columns for each of whose combinations the best row is wanted; then a list of rows comes back.
        """
        keys, each = self._columns_of("by", by), self._columns_of("per", per)
        if not keys:
            raise InputError("name at least one column", field="by", value=by, allowed=", ".join(self.columns))
        found: dict[tuple[Any, ...], tuple[tuple[Any, ...], int]] = {}
        for chunk in self.chunks():
            for group, order, index in _firsts(*self._ordered(chunk, keys, each, where)):
                if group not in found or order < found[group][0]:
                    found[group] = (order, index + chunk.start)
        rows = [self.row(index) for _, (_, index) in sorted(found.items())]
        return rows if each else next(iter(rows), None)

    def _columns_of(self, field: str, given: Any) -> tuple[str, ...]:
        """Names of columns, each perhaps with a minus before it."""
        names = names_of(field, given, ", ".join(self.columns))
        for name in names:
            self._known(field, name.removeprefix("-"))
        return names

    def _known(self, field: str, name: Any) -> None:
        if not isinstance(name, str) or name not in self.columns:
            raise InputError(
                f"no column {shown(name)}",
                field=field,
                allowed=", ".join(self.columns),
                nearest=nearest(name, self.columns),
            )

    def _ordered(
        self, chunk: PointRange, keys: Sequence[str], each: Sequence[str], where: Where
    ) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
        kept = self._kept(chunk, where)
        groups = np.stack([self._column(chunk, name)[kept] for name in each] or [np.zeros(len(kept), np.int64)])
        order = np.stack([_signed(self._column(chunk, name.removeprefix("-"))[kept], name) for name in keys])
        return groups, order, kept

    def pareto(self, first: str, second: str, where: Where = None) -> list[dict[str, Any]]:
        """The rows that no other beats in both columns, smallest `first` first; `-name` means larger is better."""
        pair = (*self._columns_of("first", first), *self._columns_of("second", second))
        if len(pair) != 2:
            raise InputError("must be one column each", field="first", allowed=", ".join(self.columns))
        best: list[tuple[Any, Any, int]] = []
        for chunk in self.chunks():
            kept = self._kept(chunk, where)
            pairs = [_signed(self._column(chunk, name.removeprefix("-"))[kept], name) for name in pair]
            best = _frontier(best, pairs[0], pairs[1], kept + chunk.start)
        return [self.row(index) for _, _, index in best]

    def _kept(self, chunk: PointRange, where: Where) -> NDArray[Any]:
        mask = chunk.columns["status"] != ILLEGAL
        if callable(where) and not isinstance(where, type):
            mask &= _mask(where(chunk.columns), len(mask))
        elif where is not None:
            if not isinstance(where, Mapping):
                allowed = "a mapping of columns to values, or a function of the columns"
                raise InputError("selects nothing", field="where", value=where, allowed=allowed)
            for name in where:
                self._known("where", name)
            mask &= _matching(chunk.columns, self.table, where)
        return np.flatnonzero(mask)

    def _column(self, chunk: PointRange, name: str) -> NDArray[Any]:
        return chunk.columns[name]


def _mask(given: Any, count: int) -> NDArray[Any]:
    """What a function of the columns gave: true or false for every row.

    Raises:
        InputError: anything else.

    """
    try:
        found = np.asarray(given) if isinstance(given, np.ndarray | np.bool_ | list) else None
    except ValueError:
        found = None
    if found is None or found.dtype != bool or found.shape not in {(count,), ()}:
        allowed = f"an array of {count} that are true or false"
        raise InputError("the function gave no mask", field="where", value=given, allowed=allowed)
    return np.broadcast_to(found, count)


def _matching(columns: Mapping[str, Any], table: Sequence[Column], where: Mapping[str, Any]) -> Any:
    """Which rows have the values asked for: one value or several for each column, names as names."""
    known = {column.name: column for column in table}
    found: Any = True
    for name, wanted in where.items():
        several = wanted if isinstance(wanted, list | tuple | set | frozenset | range) else (wanted,)
        values = items(f"where {name}", several, most=MOST_WANTED, allowed=_WANTED)
        found = found & np.isin(columns[name], [_code(known[name], value) for value in values])
    return found


def _code(column: Column, value: Any) -> Any:
    if isinstance(value, str):
        return column.names.index(value) if column.names is not None and value in column.names else -2
    if value is None:
        return -1  # as columns hold what a row does not have
    if not isinstance(value, bool | int | float | np.number):
        raise InputError("is no value of a column", field=f"where {column.name}", value=value, allowed=_WANTED)
    size: Any = abs(value)
    return value if size < LARGEST else -2


def _signed(values: NDArray[Any], name: str) -> NDArray[Any]:
    if not name.startswith("-"):
        return values
    return -values if values.dtype.kind == "f" else -values.astype(np.int64)


def _firsts(
    groups: NDArray[Any], order: NDArray[Any], index: NDArray[Any]
) -> Iterator[tuple[tuple[Any, ...], tuple[Any, ...], int]]:
    """The first row of each group in order."""
    if not len(index):
        return
    ranked = np.lexsort((*order[::-1], *groups[::-1]))
    sorted_groups = groups[:, ranked]
    new = np.ones(len(ranked), bool)
    new[1:] = (sorted_groups[:, 1:] != sorted_groups[:, :-1]).any(axis=0)
    for at in ranked[new].tolist():
        yield tuple(groups[:, at].tolist()), (*order[:, at].tolist(), int(index[at])), int(index[at])


def _frontier(
    best: list[tuple[Any, Any, int]], first: NDArray[Any], second: NDArray[Any], index: NDArray[Any]
) -> list[tuple[Any, Any, int]]:
    ranked = np.lexsort((index, second, first))
    lowest = np.minimum.accumulate(second[ranked]) if len(ranked) else second
    drops = np.ones(len(ranked), bool)
    drops[1:] = lowest[1:] < lowest[:-1]
    mine = ranked[drops]
    every = sorted([*best, *zip(first[mine].tolist(), second[mine].tolist(), index[mine].tolist(), strict=True)])
    kept: list[tuple[Any, Any, int]] = []
    for point in every:
        if not kept or point[1] < kept[-1][1]:
            kept.append(point)
    return kept


def extra(module: str, name: str) -> Any:
    """The library of an extra.

    Raises:
        InputError: it is not installed; the message names the extra.

    """
    from importlib import import_module

    try:
        return import_module(module)
    except ImportError:
        raise InputError(f"{module} is not installed: {install(name)}") from None


# ---- the question


@lru_cache(maxsize=2)
def _again(asked: bytes) -> Sweep:
    """A sweep in a worker, which keeps what its boxes share."""
    settings, axes, timed = pickle.loads(asked)  # noqa: S301  # what this program has handed to its worker
    return Sweep(settings, axes, timed=timed)


def _chunks_of(asked: bytes, first: int, last: int) -> list[PointRange]:
    """What a worker does: some boxes of a sweep."""
    return list(map(_again(asked).chunk, range(first, last)))


def sweep(
    model: Any = defaults.MODEL,
    device: Any = defaults.DEVICES,
    *,
    over: Mapping[str, Any],
    together: Mapping[str, Any] | None = None,
    executor: Any = None,
    scope: str = defaults.SCOPE,
    time: bool = False,
    form: str | Sequence[str] = "all",
    dims: Mapping[str, Any] | None = None,
    **settings: Unpack[SettingKeywords],
) -> Sweep:
    """Every form at every setting of a grid, priced when asked for: `len`, `.to_numpy()`, `.best()`, `.pareto()`.

    over: fields of a plan and their values: a list, a range, or text such as "4096..131072*2", "1..64+1", "bf16,fp32";
    for names globs too ("deepseek-*", "all"); for a number an expression of others, "64/(tp*sp*pp)", where combinations
    without a whole number are left out. together: lists of one length that go side by side. executor: any
    `concurrent.futures.Executor` (processes, dask's, Ray's, mpi4py's), whose workers price chunks. model, device and
    settings: what stays the same, as `mla_cost.plan` takes it. scope "model" prices the worst stage of the whole model:
    degrees and micro-batches vary too, and columns tell its states, what is sent by mesh axis, and flops. time: with
    seconds of a step, tokens a second, utilisation, idle and exposed seconds, bytes between nodes; of blocks seconds,
    forward and backward. Raises `mla_cost.InputError`; a combination that cannot be is a row with its reason.

    >>> import mla_cost
    >>> over = {"seq_len": "4096..131072*2", "sp": [4, 8], "form": "all"}
    >>> study = mla_cost.sweep(device="910b-64gb", scope="attention", over=over)
    >>> len(study)
    36
    >>> study.best(by=("wire_bytes", "required_bytes"), where={"seq_len": 16384, "status": "fits"})["form"]
    'laga'
    """
    _require_kinds(over, together, time)
    require_executor(executor)
    varying = dict(over)
    given: dict[str, Any] = {"form": tuple(FORMS) if form == "all" else form, "scope": scope, **settings}
    given |= {} if dims is None else {"dims": dims}
    for name, value in (("model", model), ("device", device), ("form", given["form"])):
        _place(name, value, varying, given)
    return of(validated(PlanSettings, given), varying, together or {}, executor, timed=time)


def _require_kinds(over: Any, together: Any, time: Any) -> None:
    for field, value in (("over", over), ("together", {} if together is None else together)):
        if not isinstance(value, Mapping):
            raise InputError("must be a mapping of fields to values", field=field, value=value)
    if not isinstance(time, bool):
        raise InputError("must be true or false", field="time", value=time)


def _place(name: str, value: Any, varying: dict[str, Any], given: dict[str, Any]) -> None:
    """A fixed name goes to the settings, a glob over the axes; what is also swept over gives way."""
    if name in varying:
        given.pop(name, None)
        return
    names = list(names_of(name, value, "a name, or a list of names"))
    if name == "model" and len(names) == 1 and is_glob(names[0]):
        varying[name] = names
    elif name == "model":
        given[name] = names[0] if len(names) == 1 else value
    else:
        given[name] = tuple(expand(name, names))


def of(
    settings: PlanSettings,
    over: Mapping[str, Any],
    together: Mapping[str, Any] | None = None,
    executor: TaskExecutor | None = None,
    *,
    timed: bool = False,
) -> Sweep:
    """The sweep of a plan's settings over axes. together, executor: as `sweep`. timed: with columns of time.

    Raises:
        InputError: bad input.

    """
    if settings.scope != "model":  # of a model, the grid says so of its layers
        require_scope(settings)
    settings = settings.by_scope()
    return Sweep(settings, all_axes(settings, over, together or {}), executor, timed=timed)
