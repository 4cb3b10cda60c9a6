"""What each ready plan of configs/plans/ says of itself, made from the answer so that it cannot go stale.

`python -m mla_cost.studies.presets` writes the verdicts into the files of a checkout; a test fails when one is stale.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from textwrap import wrap
from typing import Final, NamedTuple

from mla_cost import api
from mla_cost.inputs import catalog, plan_files
from mla_cost.inputs.settings import PlanSettings
from mla_cost.results import Result

OPENS: Final = "# -- verdicts, written by `python -m mla_cost.studies.presets`"
CLOSES: Final = "# -- end of verdicts"
_WIDTH: Final = 118
_GIB: Final = 2**30


class ReadyPlan(NamedTuple):
    """A plan of configs/plans/: its name, the first line of its file, its settings, and its ranks in all."""

    name: str
    title: str
    settings: PlanSettings
    ranks: int


def plans() -> tuple[ReadyPlan, ...]:
    """Every ready plan."""
    return tuple(_plan(name) for name in catalog.plan_names())


def _plan(name: str) -> ReadyPlan:
    path = catalog.plan_path(name)
    settings = plan_files.settings(path, {}, {}, {})
    title = path.read_text(encoding="utf-8").partition("\n")[0].removeprefix("#").strip()
    return ReadyPlan(name, title, settings, settings.tp * settings.sp * settings.pp * settings.dp)


def verdicts(name: str) -> str:
    """The lines that the file of a ready plan carries: every form's verdict, and the smallest change that fits."""
    return written(answered(name))


def answered(name: str) -> api.Answer:
    """A ready plan with its levers."""
    return api.with_levers(plan_files.settings(catalog.plan_path(name), {}, {}, {}))


def written(answer: api.Answer) -> str:
    """The lines that say it."""
    return "\n".join([OPENS, *(line for row in answer.results for line in _lines(row)), CLOSES]) + "\n"


def _lines(row: Result) -> Iterator[str]:
    verdict = row.verdict
    assert verdict is not None
    if verdict.required_bytes is None or verdict.usable_bytes is None:
        yield from _wrapped(f"{row.form} on {row.device}: {verdict.status}: {verdict.reason}")
        return
    amounts = f"{verdict.required_bytes / _GIB:.1f} of {verdict.usable_bytes / _GIB:.1f} GiB"
    yield from _wrapped(
        f"{row.form} on {row.device}, kernel {row.kernel}: {verdict.status}, {amounts}; {verdict.reason}"
    )
    if verdict.remedy is not None:
        yield from _wrapped(f"  smallest change that fits: {verdict.remedy}")


def _wrapped(text: str) -> list[str]:
    return wrap(text, _WIDTH, initial_indent="# ", subsequent_indent="#     ", drop_whitespace=True)


def with_verdicts(text: str, block: str) -> str:
    """The text of a plan's file with `block` in place of the one it has, or after the comments that it begins with."""
    before, opens, rest = text.partition(OPENS)
    if opens:
        return before + block + rest.partition(f"{CLOSES}\n")[2]
    lines = text.splitlines(keepends=True)
    first = next(index for index, line in enumerate(lines) if not line.startswith("#"))
    return "".join([*lines[:first], "#\n", block, *lines[first:]])


def _write(path: Path, name: str) -> None:
    path.write_text(with_verdicts(path.read_text(encoding="utf-8"), verdicts(name)), encoding="utf-8")


if __name__ == "__main__":
    for ready in catalog.plan_names():
        _write(catalog.plan_path(ready), ready)
