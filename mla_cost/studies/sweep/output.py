"""Sweeps to files, a bounded number of rows at a time, and cut files continued where they were cut."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, Final, Protocol

import numpy as np

from mla_cost.batch.codes import ILLEGAL
from mla_cost.errors import InputError
from mla_cost.results.columns import Column
from mla_cost.results.csv_cells import harmless
from mla_cost.studies.sweep.columns import without
from mla_cost.studies.sweep.complete import answered_in
from mla_cost.studies.sweep.result import PointRange, Sweep, extra

SUFFIXES: Final = (".csv", ".jsonl", ".parquet")
PART_ROWS: Final = 1 << 19
_SCHEMA: Final = "mla-cost/sweep-resume/1"
Progress = Callable[[int], None]


class Sink(Protocol):
    """Where chunks go."""

    def write(self, chunk: PointRange) -> None:
        """Take the next chunk."""

    def finish(self) -> None:
        """All chunks were written."""


# ---- rows as text


def csv_of(sweep: Sweep) -> str:
    """All rows as one text of CSV, priced a bounded number at a time."""
    return "".join((csv_head(sweep), *(csv_text(sweep, chunk) for chunk in sweep.chunks())))


def csv_head(sweep: Sweep) -> str:
    """The heading line."""
    return ",".join(sweep.columns) + "\n"


def csv_text(sweep: Sweep, chunk: PointRange) -> str:
    """A chunk as lines of CSV; a number that a row does not have is empty."""
    texts = [_texts(sweep, column, chunk) for column in sweep.table]
    return "".join(f"{','.join(row)}\n" for row in zip(*texts, strict=True))


def _texts(sweep: Sweep, column: Column, chunk: PointRange) -> list[str]:
    if column.name == "reason":
        return [_quoted(text) for text in sweep.reasons(chunk)]
    values = chunk.columns[column.name]
    if column.names is not None:
        names = [_quoted(name) for name in column.names]
        return [names[value] for value in values.tolist()]
    found = list(map(str, sweep.readable(column, values)))
    missing = without(column, chunk.columns)
    for at in () if missing is None else np.flatnonzero(missing).tolist():
        found[at] = ""
    return found


def _quoted(text: str) -> str:
    text = harmless(text)
    if not any(mark in text for mark in ',"\r\n'):
        return text
    line = io.StringIO()
    csv.writer(line, lineterminator="").writerow([text])
    return line.getvalue()


def json_lines(sweep: Sweep, chunk: PointRange) -> Iterator[str]:
    """A chunk as one JSON object per row, without line ends."""
    for row in sweep.rows(chunk):
        yield json.dumps(row)


# ---- files


def save(sweep: Sweep, path: Path, resume: bool = False, progress: Progress = lambda _: None) -> int:
    """Write a sweep to a .csv, .jsonl or .parquet file; the number of rows that have an answer.

    While it is written, `FILE.resume` beside it says how far it is; it goes when the file is complete. resume: go on
    where that says; a file that is complete already stays as it is. progress: called with the number of points done.

    Raises:
        InputError: a file that cannot be written, nothing to resume, or a file of another plan.

    """
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        raise InputError("the file name must say what it shall hold", file=str(path), allowed=", ".join(SUFFIXES))
    try:
        return _save(sweep, path, resume, progress)
    except OSError as error:
        raise InputError(f"cannot write it: {error.strerror}", file=str(path)) from None


def _save(sweep: Sweep, path: Path, resume: bool, progress: Progress) -> int:
    note = _Note(path, sweep)
    if resume and (whole := _answered_before(sweep, path, note)) is not None:
        progress(len(sweep))
        return whole
    begun = note.read() if resume else {}
    sink: Sink = (_Parquet if path.suffix.lower() == ".parquet" else _Lines)(sweep, path, note, begun)
    answered: int = begun.get("answered", 0)
    done = begun.get("points", 0)
    progress(done)
    for chunk in sweep.chunks(start=done) if done < len(sweep) else ():
        answered += int((chunk.columns["status"] != ILLEGAL).sum())
        done += len(chunk.columns["status"])
        note.points, note.answered = done, answered
        sink.write(chunk)
        progress(done)
    sink.finish()
    return answered


def _answered_before(sweep: Sweep, path: Path, note: _Note) -> int | None:
    """What a file has answered that lacks nothing but a note of how far it is."""
    return answered_in(sweep, path) if path.exists() and not note.file.exists() else None


class _Note:
    """How far a file is, in a small file beside it."""

    def __init__(self, path: Path, sweep: Sweep) -> None:
        self.path = path
        self.file = path.with_name(path.name + ".resume")
        self.new = path.with_name(path.name + ".resume.new")
        self.plan = fingerprint(sweep)
        self.points = 0
        self.answered = 0

    def read(self) -> dict[str, Any]:
        """What was noted.

        Raises:
            InputError: nothing was, or of another plan.

        """
        self.new.unlink(missing_ok=True)
        if not self.file.exists():
            if self.path.exists():
                raise InputError(
                    f"nothing to resume: there is no {self.file.name} beside it, and it does not hold this sweep whole",
                    file=str(self.path),
                )
            return {}
        try:
            found = json.loads(self.file.read_text(encoding="utf-8"))
        except ValueError:
            found = {}
        if not isinstance(found, dict) or found.get("schema") != _SCHEMA:
            raise InputError("is not a note of a sweep", file=str(self.file))
        if found.get("plan") != self.plan:
            raise InputError("was begun for another plan; leave out --resume to begin anew", file=str(self.path))
        return found

    def write(self, **more: Any) -> None:
        """Note how far it is, in one step."""
        reported = {"schema": _SCHEMA, "plan": self.plan, "points": self.points, "answered": self.answered, **more}
        self.new.write_text(json.dumps(reported), encoding="utf-8")
        os.replace(self.new, self.file)  # noqa: PTH105  (Path.replace says the same)

    def drop(self) -> None:
        """The file is complete."""
        self.file.unlink(missing_ok=True)


def fingerprint(sweep: Sweep) -> str:
    """A digest of everything that decides the rows: settings, axes, and the facts of models and devices."""
    grid = sweep.grid
    reported = [
        grid.settings.model_dump_json(),
        [[axis.name, repr(axis.values) if isinstance(axis.values, range) else list(axis.values)] for axis in grid.axes],
        [model.model_dump_json() for model in grid.models],
        [device and device.model_dump_json() for device in grid.devices],
        [*sweep.columns],
        grid.run,
    ]
    return hashlib.sha256(json.dumps(reported).encode()).hexdigest()


class _Lines:
    """CSV or JSON Lines."""

    def __init__(self, sweep: Sweep, path: Path, note: _Note, begun: dict[str, Any]) -> None:
        self.sweep, self.note = sweep, note
        self.csv = path.suffix.lower() == ".csv"
        if not begun:
            note.write(bytes=0)  # before the file is touched: what is killed from here on can be continued
        size: int = begun.get("bytes", 0)
        self.file: IO[bytes] = _at(path, size) if size else path.open("wb")
        if not size:
            self.file.write(csv_head(sweep).encode() if self.csv else b"")
            self._noted()

    def write(self, chunk: PointRange) -> None:
        if self.csv:
            self.file.write(csv_text(self.sweep, chunk).encode())
        else:
            self.file.write("".join(f"{line}\n" for line in json_lines(self.sweep, chunk)).encode())
        self._noted()

    def _noted(self) -> None:
        self.file.flush()
        self.note.write(bytes=self.file.tell())

    def finish(self) -> None:
        self.file.close()
        self.note.drop()


def _at(path: Path, size: int) -> IO[bytes]:
    """A file cut to a size, ready for more."""
    if not path.exists() or path.stat().st_size < size:
        raise InputError("is shorter than was noted; leave out --resume to begin anew", file=str(path))
    file = path.open("r+b")
    file.seek(size)
    file.truncate()
    return file


class _Parquet:
    """A file of Parquet has no end until it is closed, so it grows as parts that are joined at last."""

    def __init__(self, sweep: Sweep, path: Path, note: _Note, begun: dict[str, Any]) -> None:
        extra("pyarrow", "arrow")
        self.sweep, self.path, self.note = sweep, path, note
        self.folder = path.with_name(path.name + ".parts")
        self.parts: int = begun.get("parts", 0)
        self.joined: bool = begun.get("joined", False)
        self.tables: list[Any] = []
        self.waiting = 0
        if not begun:
            note.write(parts=0)  # before anything is touched: what is killed from here on can be continued
        if not self.parts:
            shutil.rmtree(self.folder, ignore_errors=True)
            self.folder.mkdir()

    def write(self, chunk: PointRange) -> None:
        self.tables.append(self.sweep.arrow_chunk(chunk))
        self.waiting += len(chunk.columns["status"])
        if self.waiting >= PART_ROWS:
            self._part()

    def _part(self) -> None:
        import pyarrow as pa
        from pyarrow import parquet

        if self.tables:
            parquet.write_table(pa.concat_tables(self.tables), self.folder / f"{self.parts:06}.parquet")
            self.parts += 1
            self.tables, self.waiting = [], 0
        self.note.write(parts=self.parts)

    def finish(self) -> None:
        if not self.joined:
            self._part()
            self._join()
            self.note.write(parts=self.parts, joined=True)  # before the parts go
        shutil.rmtree(self.folder, ignore_errors=True)
        self.note.drop()

    def _join(self) -> None:
        from pyarrow import parquet

        files = [self.folder / f"{part:06}.parquet" for part in range(self.parts)]
        with parquet.ParquetWriter(self.path, parquet.read_schema(files[0])) as writer:
            for file in files:
                writer.write_table(parquet.read_table(file))
