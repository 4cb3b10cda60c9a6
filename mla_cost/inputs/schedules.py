"""Schedules by the names people type: those declared, and tables of passes in a user's own file.

A file holds `rows`, each `[stage, slot, kind, chunk, micro-batch]` from 0, of every pass of every stage.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, NoReturn

from mla_cost.declared.schedules import SCHEDULES
from mla_cost.errors import InputError, Problem, nearest, shown
from mla_cost.inputs.yaml_files import SUFFIXES, load_mapping
from mla_cost.language.schedule import (
    DeadlockError,
    PassKind,
    Schedule,
    ScheduledPass,
    ScheduleRow,
    ScheduleSize,
    Turn,
    slots,
    takes,
)

MOST_ROWS: Final = 20_000
_LARGEST: Final = 2**20
_COLUMNS: Final = ("stage", "slot", "kind", "chunk", "micro-batch")
_ALLOWED: Final = f"[{', '.join(_COLUMNS)}], kind {' or '.join(PassKind)}, whole numbers from 0"
# of zero-bubble schedules; what a rank keeps between the two is not priced
_PARTS: Final = ("backward-input", "backward-weight")


def find(name: str) -> Schedule:
    """The schedule of that name, or that a file describes; the same object until the file changes.

    Raises:
        InputError: an unknown name with the nearest ones, or the row of a file that is wrong.

    """
    if name.lower().endswith(SUFFIXES):
        return _of_file(name, _version(name))
    if name not in SCHEDULES:
        allowed = f"{', '.join(SCHEDULES)}, or the path of a .yaml file"
        raise InputError(f"unknown schedule {shown(name)}", allowed=allowed, nearest=nearest(name, SCHEDULES))
    return SCHEDULES[name]


def _version(path: str) -> int:
    """Changes when the file does; 0 for a file that cannot be looked at, which reading it then reports."""
    try:
        return Path(path).stat().st_mtime_ns
    except (OSError, ValueError):
        return 0


@lru_cache(maxsize=16)
def _of_file(path: str, version: int) -> Schedule:
    del version
    table = _PassTable(path, _rows(path))
    return Schedule(
        name=path,
        title="a table of passes",
        source=path,
        word=table.word,
        problems=table.problems,
        slots=table.slots,
    )


def _rows(path: str) -> list[ScheduleRow]:
    data = load_mapping(path)
    for key in data:
        if key not in {"rows", "source"}:
            raise InputError("a schedule has no such field", file=path, field=str(key), allowed="rows, source")
    rows = data.get("rows")
    if not isinstance(rows, list) or not rows:
        raise InputError("must be a list of passes", file=path, field="rows", allowed=_ALLOWED)
    if len(rows) > MOST_ROWS:
        raise InputError(f"{len(rows):,} rows", file=path, field="rows", allowed=f"at most {MOST_ROWS:,}")
    return [_row(path, number, row) for number, row in enumerate(rows, 1)]


def _row(path: str, number: int, given: Any) -> ScheduleRow:
    if not isinstance(given, list):
        raise InputError("must be a list of five", file=path, field=f"row {number}", value=given, allowed=_ALLOWED)
    if len(given) != len(_COLUMNS):
        message = f"must be a list of five, not of {len(given)}"
        raise InputError(message, file=path, field=f"row {number}", allowed=_ALLOWED)
    stage, slot, kind, chunk, micro_batch = given
    for column, value in zip(_COLUMNS, given, strict=True):
        if column != "kind" and (type(value) is not int or not 0 <= value < _LARGEST):
            allowed, field = f"0 to {_LARGEST - 1:,}", f"row {number}: {column}"
            raise InputError("must be a whole number", file=path, field=field, value=value, allowed=allowed)
    return ScheduleRow(stage, slot, _kind(path, number, kind), chunk, micro_batch)


def _kind(path: str, number: int, given: Any) -> PassKind:
    field, allowed = f"row {number}: kind", ", ".join(PassKind)
    if given in _PARTS:
        message = f"{given} is not priced: what a stage keeps between the two parts of a backward is not modelled"
        raise InputError(message, file=path, field=field, allowed=allowed)
    if given not in tuple(PassKind):
        near = nearest(given, PassKind)
        raise InputError("is no kind of pass", file=path, field=field, value=given, allowed=allowed, nearest=near)
    return PassKind(given)


class _PassTable:
    """The rows of a file as a schedule of one size, checked. Two tables are the same where they are one object."""

    def __init__(self, path: str, rows: Sequence[ScheduleRow]) -> None:
        self.path, self.rows = path, rows
        self.size = ScheduleSize(
            *(1 + max(getattr(row, column) for row in rows) for column in ("stage", "chunk", "micro_batch"))
        )
        self.numbers = self._numbered()
        self._require_each_once()
        self.orders = [sorted(own, key=lambda row: row.slot) for own in self._by_stage()]
        self._require_order()

    def word(self, size: ScheduleSize, stage: int) -> Iterator[Turn]:
        """The passes of a stage in the order of their slots."""
        del size
        return (Turn(row.kind, row.chunk, row.micro_batch) for row in self.orders[stage])

    def slots(self, size: ScheduleSize) -> int:
        """The slots that the table has."""
        del size
        return 1 + max(row.slot for row in self.rows)

    def problems(self, size: ScheduleSize) -> Iterator[Problem]:
        """A table is of one size."""
        own = self.size
        for field, what, here, asked in (
            ("pp", "stages", own.stages, size.stages),
            ("virtual_stages", "chunks a stage", own.chunks, size.chunks),
            ("micro_batches", "micro-batches", own.num_micro_batches, size.num_micro_batches),
        ):
            if here != asked:
                message = f"schedule {self.path} is a table of {here} {what}, and {field} is {asked}"
                yield Problem(field, message, f"change {field} to {here}")
        if size.group is not None:
            message = f"schedule {self.path} says itself which micro-batch runs when"
            yield Problem("micro_batch_group", message, "leave micro_batch_group out")

    def _numbered(self) -> dict[tuple[int, ScheduledPass], int]:
        """The number of the row that runs each pass, from 1."""
        found: dict[tuple[int, ScheduledPass], int] = {}
        at: dict[tuple[int, int], int] = {}
        for number, row in enumerate(self.rows, 1):
            before = found.setdefault(_pass(row), number)
            if before != number:
                self._refuse(number, f"{row} is row {before} already")
            before = at.setdefault((row.stage, row.slot), number)
            if before != number:
                self._refuse(number, f"stage {row.stage} runs row {before} in slot {row.slot}: one pass, one slot")
        return found

    def _require_each_once(self) -> None:
        """Every pass of the size that the rows have."""
        missing = next((each for each in _every(self.size) if each not in self.numbers), None)
        if missing is not None:
            stage, step = missing
            message = f"no row runs the {ScheduleRow(stage, 0, *step)}"
            allowed = "every pass of every stage, chunk and micro-batch"
            raise InputError(message, file=self.path, field="rows", allowed=allowed)

    def _by_stage(self) -> list[list[ScheduleRow]]:
        found: list[list[ScheduleRow]] = [[] for _ in range(self.size.stages)]
        for row in self.rows:
            found[row.stage].append(row)
        return found

    def _require_order(self) -> None:
        """No stages that wait for each other, and no pass before what it takes."""
        try:
            slots([[_pass(row)[1] for row in order] for order in self.orders], self.size)
        except DeadlockError as error:
            self._refuse_deadlock(error)
        for number, row in enumerate(self.rows, 1):
            for each in takes(_pass(row)[1], row.stage, self.size):
                other = self.rows[self.numbers[each] - 1]
                if other.slot >= row.slot:
                    self._refuse(
                        number,
                        f"slot {row.slot} of the {row} comes before the {other} is done, "
                        f"which is row {self.numbers[each]} in slot {other.slot}; give it a slot above {other.slot}",
                    )

    def _refuse_deadlock(self, error: DeadlockError) -> NoReturn:
        """The first stage that cannot go on, what it waits for, and what that stands behind."""
        stage, place = min(error.stuck.items())
        row = self.orders[stage][place]
        missing = next(each for each in takes(_pass(row)[1], stage, self.size) if not self._done(each, error))
        number, ahead = self.numbers[missing], self.orders[missing[0]][error.stuck[missing[0]]]
        first = self.numbers[_pass(ahead)]
        behind = "" if first == number else f", which stands behind row {first}, the {ahead}"
        waits = f"deadlock: the {row} waits for row {number}, the {self.rows[number - 1]}{behind}, waiting too"
        self._refuse(self.numbers[_pass(row)], waits)

    def _done(self, which: tuple[int, ScheduledPass], error: DeadlockError) -> bool:
        """Whether a pass has run where stages wait for each other."""
        stage, row = which[0], self.rows[self.numbers[which] - 1]
        return stage not in error.stuck or row.slot < self.orders[stage][error.stuck[stage]].slot

    def _refuse(self, number: int, message: str) -> NoReturn:
        raise InputError(message, file=self.path, field=f"row {number}")


def _every(size: ScheduleSize) -> Iterator[tuple[int, ScheduledPass]]:
    """Every pass of a size, with its stage."""
    for stage in range(size.stages):
        for chunk in range(size.chunks):
            for micro_batch in range(size.num_micro_batches):
                yield from ((stage, ScheduledPass(kind, chunk, micro_batch)) for kind in PassKind)


def _pass(row: ScheduleRow) -> tuple[int, ScheduledPass]:
    return row.stage, ScheduledPass(row.kind, row.chunk, row.micro_batch)
