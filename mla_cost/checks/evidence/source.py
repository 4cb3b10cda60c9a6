"""Published figures as data: each source says what it states of its runs, and each row plans with nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from mla_cost.errors import InputError, shown
from mla_cost.inputs.catalog import configs_directory
from mla_cost.inputs.config import validated
from mla_cost.inputs.yaml_files import load_mapping

Scalar = bool | int | float | str | None
Fields = dict[str, Scalar]
Choices = dict[str, tuple[Scalar, ...]]
Text = Annotated[str, Field(min_length=1)]
SOURCES = (
    "paper",
    "counted",
    "public_runs",
    "other_runs",
    "recipes",
    "time_runs",
)  # in the order of the page; a further source is one more file and name
Unit = Literal[
    "GB", "MB", "GiB", "MiB", "bytes", "elements", "percent", "ratio", "absolute", "truth", "fits", "ms", "tokens/s"
]  # fmt: skip
UNITS = {
    "GB": 1e9, "MB": 1e6, "GiB": 2.0**30, "MiB": 2.0**20, "bytes": 1.0, "elements": 1.0, "fits": 1.0,
    "ms": 1e-3, "tokens/s": 1.0,
}  # fmt: skip


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Statement(_Strict):
    """A plan field that a source states: the values it may have, how well that is read, and where it stands."""

    values: tuple[Scalar, ...]
    origin: Literal["abstract", "summary", "counted", "measured", "stated", "inferred"]
    cite: Text


class Executor(_Strict):
    """A claim about numbers instead of costs, which real ranks show at small dims."""

    check: Literal["identical", "difference"]
    sp: tuple[int, ...]


class PublishedRow(_Strict):
    """One published figure and the plans that predict it.

    read: the field of a result, less those of `less`, or a figure by name (`reads.NAMED`); tensors: what such a figure
    is of. of, against: plan fields of the two sides. how: what is made of them (`as` in the file). grid: the figure is
    the range over these cells. bound, at_least: the figure is an upper, a lower bound. others: cells that the source
    does not claim and the page prints beside it. decimals: how many the source prints, to all of which a prediction
    has to agree. because: why it differs. note: reported in any case. gates: whether the tool answers for this figure.
    missing: why nothing is predicted; where `of` is given, what that plan comes to is reported nevertheless.
    """

    id: Text
    quantity: Text
    published: bool | float | tuple[float, float]
    unit: Unit
    origin: Literal["abstract", "summary", "counted", "measured", "stated", "inferred"]
    cite: Text
    tolerance: float
    bound: bool = False
    at_least: bool = False
    plan: Fields = {}
    grid: Choices = {}
    others: Choices = {}
    read: str = ""
    less: tuple[str, ...] = ()
    tensors: tuple[str, ...] = ()
    of: Fields = {}
    against: Fields = {}
    how: Literal["value", "difference", "ratio", "excess", "candidates", "visible", "slope", "intercept"] = Field(
        "value", alias="as"
    )
    use: Literal["", "gate", "ratio"] = ""
    accountings: bool = False
    executor: Executor | None = None
    decimals: int | None = None
    because: str = ""
    note: str = ""
    gates: bool = False
    missing: str = ""


class Source(_Strict):
    """A source: what it states, the plan fields that its rows share, and its rows."""

    name: Text
    title: Text
    states: dict[str, Statement]
    common: Fields = {}
    rows: tuple[PublishedRow, ...]

    def plan(self, row: PublishedRow) -> Fields:
        """The plan of a row without what distinguishes its sides and cells."""
        return {**self.common, **row.plan}


def load(name: str) -> Source:
    """The source of that name, every plan checked against what the source states.

    Raises:
        InputError: the file is wrong, or a plan has a field or a value that its source does not state.

    """
    return read(directory() / f"{name}.yaml")


def directory() -> Path:
    """Where the published figures are."""
    return configs_directory() / "evidence"


def read(path: Path) -> Source:
    """The source in a file."""
    return checked(validated(Source, _floats(load_mapping(path)), file=str(path)), str(path))


def _floats(data: Mapping[str, Any]) -> dict[str, Any]:
    """Published figures and tolerances may be written as whole numbers."""
    rows = [
        {**row, **{key: _float(row[key]) for key in ("published", "tolerance") if key in row}} for row in data["rows"]
    ]
    return {**data, "rows": rows}


def _float(value: Any) -> Any:
    if isinstance(value, list):
        return [_float(item) for item in value]
    return float(value) if isinstance(value, int) and not isinstance(value, bool) else value


def checked(source: Source, file: str) -> Source:
    """The source, if its plans say only what it states."""
    _check(source, "common", {name: (value,) for name, value in source.common.items()}, file)
    for row in source.rows:
        for part in (row.plan, row.of, row.against):
            _check(source, row.id, {name: (value,) for name, value in part.items()}, file)
        for cells in (row.grid, row.others):
            _check(source, row.id, cells, file)
    return source


def _check(source: Source, where: str, fields: Mapping[str, tuple[Scalar, ...]], file: str) -> None:
    for name, values in fields.items():
        stated = source.states.get(name)
        if stated is None:
            raise InputError(
                f"{source.title} does not state {shown(name)}, so no plan of it may", file=file, field=where
            )
        for value in values:
            if value not in stated.values:
                allowed = ", ".join(map(str, stated.values))
                raise InputError(f"not stated for {name}", file=file, field=where, value=value, allowed=allowed)
