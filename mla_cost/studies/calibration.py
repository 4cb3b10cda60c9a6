"""A device's ceilings fitted to measured steps: least squares over what predicted times are made of.

A step is the sum of its terms, each times a factor that the data decide. Directions in which the data say too little
are left at one, and the terms that lie in them are named: a product that is always as long as an exchange in every
step could be either.
"""

from __future__ import annotations

import csv
import re
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, Final, NamedTuple

from mla_cost import api
from mla_cost.declared import defaults
from mla_cost.errors import InputError, nearest, shown
from mla_cost.inputs import catalog
from mla_cost.inputs.config import DeviceConfig, Fact, TimeFact
from mla_cost.inputs.table import TABLE
from mla_cost.results import Time
from mla_cost.studies.sweep.result import extra

MEASURED: Final = "seconds"
MOST_ROWS: Final = 10_000
LEAST_SHARE: Final = 0.02  # of a step, below which a term is not looked at
LEAST_SIGHT: Final = 0.05  # of the best seen direction, below which one is not told from noise
ENDS: Final = (0.1, 10.0)  # of a factor
_PINNED: Final = 100.0  # how much a direction that is not seen counts towards staying as it was
# What a term is made of, by how its parts are called, and the ceilings that it moves.
TERMS: Final[Mapping[str, tuple[str, tuple[TimeFact, ...]]]] = {
    "products": ("products", ("gemm_share",)),
    "expert products": ("expert products", ("grouped_gemm_share",)),
    "fused attention": ("fused attention", ("attention_share",)),
    "memory": (
        "memory-bound ops|rotary embedding|permuting rows|loss|optimizer",
        (
            *("memory_share", "rope_share", "permutation_share", "loss_share"),
            *("norm_share", "softmax_share", "copy_share"),
        ),
    ),
    "exchanges": (
        "exchanges over .*|keeping weights equal over .*",
        (
            *("all_gather_share", "reduce_scatter_share", "all_reduce_share", "all_to_all_share"),
            *("point_to_point_share", "dispatch_share", "network_share"),
        ),
    ),
    "the host": ("waiting for the host", ("host_launch_us",)),
}
_SPREAD: Final = "idle in the pipeline"  # as long as the work that it waits for


class ScaledTerm(NamedTuple):
    """A term: what its time is multiplied by, how well that is known, and its mean part of the steps."""

    name: str
    factor: float
    error: float | None
    share: float


class StepRow(NamedTuple):
    """A measured step, and what is predicted for it before and after. Seconds."""

    settings: Mapping[str, Any]
    seconds: float
    before: float
    after: float


class Calibration(NamedTuple):
    """Factors, the directions that the data leave open, and how well the steps are met."""

    device: str
    terms: tuple[ScaledTerm, ...]
    apart: tuple[tuple[str, ...], ...]
    absent: tuple[str, ...]
    rows: tuple[StepRow, ...]
    capped: tuple[str, ...]
    config: Mapping[str, Any]

    def errors(self, which: str) -> tuple[float, float]:
        """The median and the worst error of the steps, `before` or `after`."""
        off = [abs(getattr(row, which) / row.seconds - 1) for row in self.rows]
        return median(off), max(off)

    def to_dict(self) -> dict[str, Any]:
        """As `mla-cost calibrate --format json` prints it."""
        return {
            "schema": "mla-cost/calibrate/1",
            "device": self.device,
            "terms": [term._asdict() for term in self.terms],
            "not_told_apart": [list(names) for names in self.apart],
            "hardly_there": list(self.absent),
            "at_their_peak": list(self.capped),
            "rows": [row._asdict() for row in self.rows],
            **{name: dict(zip(("median", "worst"), self.errors(name), strict=True)) for name in ("before", "after")},
        }

    def text(self) -> str:
        """The device's file with its ceilings scaled."""
        import yaml

        head = f"# {self.device} with ceilings scaled by `mla-cost calibrate` to {len(self.rows)} measured steps.\n"
        return head + yaml.safe_dump(dict(self.config), sort_keys=False, width=10_000, default_flow_style=None)


def calibration(file: Path, device: str) -> Calibration:
    """Fit the ceilings of a device to the steps of a CSV: a header of settings and `seconds`, a step a row.

    Raises:
        InputError: a column that is no setting, a value that is none, too few steps, or a device without ceilings.

    """
    extra("scipy", "calibrate")
    own = catalog.device(device)
    steps = read(file)
    times = [_time(settings, device, file, at) for at, (settings, _) in enumerate(steps)]
    shares = [_terms(time) for time in times]
    seconds = [each for _, each in steps]
    terms, apart, absent = fitted(shares, seconds)
    config, capped = scaled(own, {term.name: term.factor for term in terms})
    after = _again([settings for settings, _ in steps], config, file)
    rows = zip((settings for settings, _ in steps), seconds, (time.total.seconds for time in times), after, strict=True)
    return Calibration(own.name, terms, apart, absent, tuple(StepRow(*row) for row in rows), capped, config)


def read(file: Path) -> list[tuple[dict[str, Any], float]]:
    """Settings and seconds of every row.

    Raises:
        InputError: as `calibration`.

    """
    try:
        with file.open(encoding="utf-8", newline="") as lines:
            rows = list(csv.DictReader(lines))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"cannot be read: {error}", file=str(file)) from None
    if not rows or len(rows) > MOST_ROWS:
        raise InputError(f"{len(rows)} steps", file=str(file), allowed=f"1 to {MOST_ROWS:,}")
    _require_columns(rows[0], file)
    return [_row(row, file, at) for at, row in enumerate(rows)]


def _require_columns(row: Mapping[str, Any], file: Path) -> None:
    known = [*TABLE, MEASURED]
    for name in row:
        if name not in known and not str(name).startswith(("dims.", "facts.")):
            raise InputError(
                "no such column", file=str(file), value=name, allowed=f"settings of a plan, and {MEASURED}",
                nearest=nearest(str(name), known),
            )  # fmt: skip
    if MEASURED not in row:
        raise InputError("no column of measured times", file=str(file), allowed=MEASURED)


def _row(row: Mapping[str, str | None], file: Path, at: int) -> tuple[dict[str, Any], float]:
    told = {name: text.strip() for name, text in row.items() if isinstance(text, str) and text.strip()}
    try:
        seconds = float(told.pop(MEASURED))
    except (KeyError, ValueError):
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise InputError("is no time", file=str(file), line=at + 2, field=MEASURED, value=shown(row.get(MEASURED)))
    return {name: int(text) if re.fullmatch(r"\d{1,15}", text) else text for name, text in told.items()}, seconds


def _time(settings: Mapping[str, Any], device: str, file: Path, at: int) -> Time:
    rest = {name: value for name, value in settings.items() if "." not in name and name != "device"}
    own: dict[str, Any] = {
        part: {name.removeprefix(f"{part}."): value for name, value in settings.items() if name.startswith(f"{part}.")}
        for part in ("dims", "facts")
    }
    try:
        found = api.plan(device=device, **{"form": defaults.BASELINE, **rest}, **own).results[0]
    except InputError as error:
        raise InputError(error.message, file=str(file), line=at + 2, field=error.field, value=error.value) from None
    if found.time is None:
        reason = found.verdict.reason if found.verdict and found.verdict.status == "illegal" else "no ceilings"
        raise InputError(f"no time is predicted: {reason}", file=str(file), line=at + 2)
    return found.time


def _terms(time: Time) -> dict[str, float]:
    """Seconds of every term; what waits in the pipeline goes with the work that it waits for."""
    parts = {part.name: part.seconds for part in time.parts}
    idle = parts.pop(_SPREAD, 0.0)
    found = {
        name: sum(seconds for part, seconds in parts.items() if re.fullmatch(pattern, part))
        for name, (pattern, _) in TERMS.items()
    }
    whole = sum(found.values())
    return {name: seconds * (1 + idle / whole) for name, seconds in found.items()} if whole else found


def fitted(
    shares: Sequence[Mapping[str, float]], seconds: Sequence[float]
) -> tuple[tuple[ScaledTerm, ...], tuple[tuple[str, ...], ...], tuple[str, ...]]:
    """Factors of the terms, sets of terms that the steps cannot tell apart, and terms that are hardly there."""
    import numpy as np
    from scipy import linalg, optimize

    names = [
        name for name in TERMS
        if max(each[name] / whole for each, whole in zip(shares, seconds, strict=True)) >= LEAST_SHARE
    ]  # fmt: skip
    if not names:
        raise InputError("the steps are far longer than all that is predicted, as no device does", field=MEASURED)
    absent = tuple(name for name in TERMS if name not in names)
    rest = np.array([sum(each[name] for name in absent) for each in shares]) / np.array(seconds)
    table = np.array([[each[name] for name in names] for each in shares]) / np.array(seconds)[:, None]
    _, sizes, ways = linalg.svd(table, full_matrices=True)
    sight = np.concatenate([sizes, np.zeros(len(names) - len(sizes))])
    seen = sight > LEAST_SIGHT * sight[0]
    off = 1 - rest - table.sum(1)
    basis = ways[seen]
    held = np.vstack([table, _PINNED * ways[~seen]])
    wanted = np.concatenate([off, np.zeros(len(held) - len(off))])
    factors = 1 + optimize.lsq_linear(held, wanted, bounds=(ENDS[0] - 1, ENDS[1] - 1)).x
    left = off - table @ (factors - 1)
    spare = len(seconds) - int(seen.sum())
    noise = float(left @ left) / spare if spare > 0 else None
    error = None if noise is None else np.sqrt(noise * ((basis / sight[seen][:, None]) ** 2).sum(0))
    terms = tuple(
        ScaledTerm(name, float(factors[at]), None if error is None else float(error[at]), float(table[:, at].mean()))
        for at, name in enumerate(names)
    )
    _require_sound(terms)
    apart = tuple(_together(names, way) for way in ways[~seen])
    return terms, tuple(each for each in dict.fromkeys(apart) if each), absent


def _require_sound(terms: Iterable[ScaledTerm]) -> None:
    """Refuse factors at the ends of what is looked at."""
    for term in terms:
        if not 1.01 * ENDS[0] < term.factor < 0.99 * ENDS[1]:
            raise InputError(
                f"the steps ask for {term.factor:.3g} times the {term.name} or beyond, which no device does; "
                "a setting of some row is not what ran, or there are too few rows",
                field=MEASURED,
            )


def _together(names: Sequence[str], way: Iterable[float]) -> tuple[str, ...]:
    """The terms that a direction is made of."""
    return tuple(name for name, part in zip(names, way, strict=True) if abs(part) > 0.3)


def scaled(own: DeviceConfig, factors: Mapping[str, float]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The device's file with its ceilings moved, and those that would be above their peak."""
    time, capped = dict(own.time), list[str]()
    for name, factor in factors.items():
        for fact in TERMS[name][1]:
            if fact in time:
                time[fact], over = _moved(time[fact], factor, longer=fact.endswith("_us"))
                capped += [fact] * over
    found = own.model_dump(mode="json", exclude_none=True)
    found["time"] = {name: fact.model_dump(mode="json", exclude_none=True) for name, fact in time.items()}
    found["sources"] = {**found["sources"], "calibrated": "scaled by mla-cost calibrate to measured steps"}
    return {**found, "name": f"{own.name}-calibrated", "aliases": []}, tuple(capped)


def _moved(fact: Fact, factor: float, *, longer: bool) -> tuple[Fact, bool]:
    times = factor if longer else 1 / factor
    ends = {name: getattr(fact, name) for name in ("low", "value", "high")}
    moved = {name: float(f"{float(end) * times:.4g}") for name, end in ends.items() if end is not None}
    over = not longer and moved["value"] > 1
    if not longer:
        moved = {name: min(end, 1.0) for name, end in moved.items()}
    return fact.model_copy(update={**moved, "source": "calibrated", "verified": True}), over


def _again(steps: Sequence[Mapping[str, Any]], config: Mapping[str, Any], file: Path) -> list[float]:
    """Seconds of every step on the scaled device."""
    import yaml

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "device.yaml"
        path.write_text(yaml.safe_dump(dict(config), sort_keys=False, width=10_000), encoding="utf-8")
        return [_time(settings, str(path), file, at).total.seconds for at, settings in enumerate(steps)]
