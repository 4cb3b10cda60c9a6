"""One published figure replayed: what is predicted, how far that is off, and why."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from itertools import product
from operator import attrgetter
from typing import Any, NamedTuple

from mla_cost import api
from mla_cost.checks.evidence import counts, fused, numerics
from mla_cost.checks.evidence.accountings import accountings
from mla_cost.checks.evidence.reads import read
from mla_cost.checks.evidence.source import UNITS, Choices, Fields, PublishedRow, Source, directory
from mla_cost.declared import defaults
from mla_cost.inputs import catalog
from mla_cost.results import Result

Figure = bool | float | list[float]
TIMES = frozenset({"ms", "tokens/s"})
OF_TIME = ("time.", "passes", "step after")  # how that begins which a row about time reads


class Cell(NamedTuple):
    """A point of a grid and the value there."""

    at: Mapping[str, Any]
    value: float


class Outcome(NamedTuple):
    """A replayed row: the fields of the JSON, and the cells that a range or a bound was read from.

    bound: `at most` or `at least` where the source publishes a limit and no figure; empty else.
    """

    id: str
    quantity: str
    source: str
    origin: str
    published: Figure
    predicted: Figure | None
    relative_difference: float | None
    tolerance: float
    status: str
    reason: str
    unit: str
    cite: str
    gates: bool = False
    cells: tuple[Cell, ...] = ()
    bound: str = ""
    use: str = ""
    device: str | None = None


def replay(source: Source, row: PublishedRow, executor: bool) -> Outcome:
    """Predict one row. executor: also run the forms on real ranks where a row is about numbers."""
    if row.missing:
        return _outcome(source, row, None, f"not modelled: {row.missing}{_reported(source, row)}")
    if row.how == "visible":
        return _visible(source, row)
    if row.executor is not None:
        found = numerics.run(row) if executor else None
        return _outcome(source, row, found, "" if executor else numerics.HOW)
    if row.how == "candidates":
        return _candidates(source, row)
    cells = tuple(_cells(source, row, row.grid))
    if not cells:
        return _outcome(source, row, None, f"not modelled: {_refusal(source, row)}")
    values = [cell.value for cell in cells]
    predicted: Figure = [min(values), max(values)] if isinstance(row.published, tuple) else values[0]
    return _outcome(source, row, predicted, _reason(source, row, cells), cells)


def _outcome(
    source: Source, row: PublishedRow, predicted: Figure | None, reason: str, cells: tuple[Cell, ...] = ()
) -> Outcome:
    published: Figure = list(row.published) if isinstance(row.published, tuple) else row.published
    off = None if predicted is None else _off(published, predicted)
    status = _status(row, off) if row.decimals is None else _printed(row, predicted)
    if status == "differs":
        words = "the nearest reading gives" if row.how == "candidates" else "predicted"
        reason = f"{words} {shown(predicted)}{_because(source, row)}{'; ' if reason else ''}{reason}"
    reason = "; ".join(part for part in (reason, row.note) if part)
    return Outcome(
        row.id, row.quantity, source.name, row.origin, published, predicted, off, row.tolerance, status, reason,
        row.unit, row.cite, row.gates, cells, "at most" if row.bound else "at least" if row.at_least else "",
        row.use, str(row.plan["device"]) if row.read.startswith(OF_TIME) and "device" in row.plan else None,
    )  # fmt: skip


def counted() -> Iterator[Outcome]:
    """The parameter counts of the catalogue's models, which have to be exact."""
    for found in counts.counts():
        off = None if found.predicted is None else found.predicted / found.published - 1
        status = "not-modelled" if off is None else "matches" if found.predicted == found.published else "differs"
        predicted = None if found.predicted is None else float(found.predicted)
        yield Outcome(
            found.id, found.quantity, counts.NAME, found.origin, float(found.published), predicted, off, 0.0, status,
            found.reason, "elements", found.cite,
        )  # fmt: skip


def _off(published: Figure, predicted: Figure) -> float:
    """Predicted over published less one; of a range, at the end that is further off."""
    if isinstance(published, list) and isinstance(predicted, list):
        return max((mine / theirs - 1 for mine, theirs in zip(predicted, published, strict=True)), key=abs)
    assert not isinstance(published, list)
    assert not isinstance(predicted, list)
    if isinstance(published, bool):
        return float(bool(predicted) != published)
    return predicted / published - 1


def _status(row: PublishedRow, off: float | None) -> str:
    if off is None:
        return "not-modelled"
    beyond = off if row.bound else -off if row.at_least else abs(off)
    return "matches" if beyond <= row.tolerance else "differs"


def _printed(row: PublishedRow, predicted: Figure | None) -> str:
    """Whether a prediction, rounded as the source prints, is what it prints."""
    assert isinstance(predicted, float)
    assert row.decimals is not None
    return "matches" if round(predicted, row.decimals) == row.published else "differs"


def shown(figure: Figure | None) -> str:
    """A figure as the reasons print it."""
    if isinstance(figure, list):
        return " to ".join(shown(end) for end in figure)
    return str(figure).lower() if figure is None or isinstance(figure, bool) else f"{figure:,.5g}"


def _because(source: Source, row: PublishedRow) -> str:
    if not row.because:
        return ""
    priced = price({**source.plan(row), **row.of}).memory
    two_inputs = 2 * next((tensor.bytes for tensor in priced.tensors if tensor.name == "x"), 0)
    return f": {row.because.format(two_inputs=shown(two_inputs / 1e9))}"


# ---- plans


def price(fields: Mapping[str, Any]) -> Result:
    """The result of a plan that has one form and one device."""
    return _priced(tuple(sorted(fields.items())))


@lru_cache(maxsize=32)  # rows of one run differ in what they read
def _priced(fields: tuple[tuple[str, Any], ...]) -> Result:
    of_model = {
        part: {name.removeprefix(f"{part}."): value for name, value in fields if name.startswith(f"{part}.")}
        for part in ("dims", "facts")
    }
    rest = {name: value for name, value in fields if name.partition(".")[0] not in of_model}
    if str(rest.get("model", "")).endswith(".yaml"):  # a model of one run, kept beside its figures
        rest["model"] = str(directory() / "models" / str(rest["model"]))
    # published blocks are op by op unless their source says otherwise
    usual = {} if rest.get("scope") == "model" else {"scope": "attention", "kernel": defaults.ATTENTION_KERNEL}
    return api.plan(**{**usual, **rest, "facts": of_model["facts"]}, dims=of_model["dims"]).results[0]


def grid(choices: Choices) -> Iterator[dict[str, Any]]:
    """Every cell of a grid; one empty cell without any choice."""
    for values in product(*choices.values()):
        yield dict(zip(choices, values, strict=True))


def _cells(source: Source, row: PublishedRow, choices: Choices) -> Iterator[Cell]:
    """The cells for which a program exists."""
    for at in grid(choices):
        value = _value(row, {**source.plan(row), **at})
        if value is not None:
            yield Cell(at, value)


def _value(row: PublishedRow, plan: Fields) -> float | None:
    ours = _read(row, {**plan, **row.of})
    theirs = _read(row, {**plan, **row.against}) if row.against else 0
    if ours is None or theirs is None:
        return None
    if row.how == "ratio":
        return float(ours / theirs)
    if row.how == "excess":
        return float(100 * (ours / theirs - 1))
    if row.how in {"slope", "intercept"}:
        theirs = _line(row, ours, theirs)
        ours = 0 if row.how == "slope" else ours
    return float((ours - theirs) / UNITS[row.unit])


def _line(row: PublishedRow, ours: float, theirs: float) -> float:
    """Through two numbers of micro-batches: less the slope, or what the slope makes of the first number of them."""
    many, few = (float(str(part["micro_batches"])) for part in (row.of, row.against))
    slope = (ours - theirs) / (many - few)
    return -slope if row.how == "slope" else slope * many


def _read(row: PublishedRow, plan: Fields) -> Any:
    return read(row, price(plan), plan)


def _reported(source: Source, row: PublishedRow) -> str:
    """What the nearest plan that can be priced comes to."""
    if row.unit in TIMES:
        near = _value(row, source.plan(row)) if row.plan else None
        return "" if near is None else f": {shown(near)} {row.unit} with products in 16 bits and what else is priced"
    if not row.of:
        return ""
    verdict = price({**source.plan(row), **row.of}).verdict
    assert verdict is not None
    needed, usable = verdict.required_bytes or 0, verdict.usable_bytes or 0
    return f": {needed / 1e9:,.5g} of {usable / 1e9:,.5g} GB that are usable, {verdict.status}"


def _visible(source: Source, row: PublishedRow) -> Outcome:
    """What the device files say that a framework sees, over the devices of the row's grid."""
    devices = [catalog.device(str(name)) for name in row.grid["device"]]
    sizes = [device.visible_bytes.integer / UNITS[row.unit] for device in devices]
    return _outcome(source, row, [min(sizes), max(sizes)], "")


def _refusal(source: Source, row: PublishedRow) -> str:
    verdict = price({**source.plan(row), **row.of}).verdict
    return verdict.reason if verdict else ""


# ---- reasons


def _reason(source: Source, row: PublishedRow, cells: tuple[Cell, ...]) -> str:
    if row.accountings:
        plan = source.plan(row)
        return accountings(row, price({**plan, **row.of}), price({**plan, **row.against}), _inputs(plan))
    if row.grid:
        return _ends(cells)
    return _beyond(row, tuple(_cells(source, row, row.others))) if row.others else ""


def _inputs(plan: Fields) -> Mapping[str, int]:
    """The widths of a plan's model."""
    dims = {name.removeprefix("dims."): value for name, value in plan.items() if name.startswith("dims.")}
    found: Mapping[str, int] = api.plan(device=None, dims=dims).inputs["dims"]
    return found


def words(at: Mapping[str, Any]) -> str:
    """A cell in words: seq_len 4096, sp 16."""
    return ", ".join(f"{name.removeprefix('dims.')} {value}" for name, value in at.items())


def _ends(cells: tuple[Cell, ...]) -> str:
    least, most = min(cells, key=attrgetter("value")), max(cells, key=attrgetter("value"))
    text = f"least {shown(least.value)} at {words(least.at)}; most {shown(most.value)} at {words(most.at)}"
    rest = [cell for cell in cells if not _one_head(cell)]
    if len(rest) == len(cells) or not rest:
        return text
    values = [cell.value for cell in rest]
    return f"{text}; without the cells of one head per rank {shown(min(values))} to {shown(max(values))}"


def _one_head(cell: Cell) -> bool:
    return bool(cell.at.get("dims.heads") == cell.at.get("sp"))


def _beyond(row: PublishedRow, others: tuple[Cell, ...]) -> str:
    assert isinstance(row.published, float)
    over = [cell for cell in others if cell.value > row.published]
    if not over:
        return f"holds in all {len(others)} cells of the grid too"
    many = (
        f"{len(over)} of the {len(others)} cells of the grid are above the bound, which is claimed for this cell alone"
    )
    return f"{many}: {_named(over)}; the others: {_named(cell for cell in others if cell not in over)}"


def _named(cells: Iterable[Cell]) -> str:
    return "; ".join(f"{words(cell.at)}: {shown(cell.value)}" for cell in cells)


def _candidates(source: Source, row: PublishedRow) -> Outcome:
    """The figure whose meaning is not stated: the reading that comes nearest on the paper's own metric."""
    assert isinstance(row.published, float)
    search = fused.search(source.plan(row), row.grid, row.published)
    near = search.as_measured.nearest[0]
    return _outcome(source, row, near.gb, search.words())
