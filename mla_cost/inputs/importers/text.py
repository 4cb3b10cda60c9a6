"""An import as text: a commented plan file, and a few lines for a terminal."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from mla_cost.inputs.importers.imported import Assumed, Imported, Taken
from mla_cost.inputs.plan_text import plan_text, text_of


def commented_plan(imported: Imported, model: str | None = None) -> str:
    """The plan file. model: what it names in place of a model of its own, the path of that file."""
    settings = imported.settings if model is None else {**imported.settings, "model": model}
    comments = {each.setting: each.said for each in imported.taken}
    comments |= {each.setting: f"assumed: {each.why}" for each in imported.assumed}
    return plan_text(settings, comments, [*_head(imported)])


def model_text(imported: Imported) -> str:
    """The model file of an import whose model the catalogue has not."""
    assert imported.own_model is not None
    said = {each.setting.removeprefix("facts."): each.said for each in imported.taken}
    said |= {each.setting.removeprefix("facts."): f"assumed: {each.why}" for each in imported.assumed}
    return text_of(imported.own_model, said, [f"The model of {Path(imported.file).name}"])


def _head(imported: Imported) -> Iterator[str]:
    yield f"Imported from {Path(imported.file).name}, {imported.title}"
    if "device" not in imported.settings:
        yield "Which device runs it is not in the file: --device names it."
    yield from _section("Assumed, since the file does not say:", [_assumed(each) for each in imported.assumed])
    own = [_stated(each) for each in imported.taken if each.setting.startswith(("dims.", "facts."))]
    if imported.settings.get("model") and own:
        yield from _section("The model, as the file states it:", own)
    left = [f"{each.said}: {each.why}" for each in imported.ignored if each.priced]
    yield from _section("Changes memory or traffic and is not priced:", left)
    by_reason: dict[str, list[str]] = {}
    for each in imported.ignored:
        if not each.priced:
            by_reason.setdefault(each.why, []).append(each.said)
    yield from _section("Ignored:", [f"{'; '.join(said)}: {why}" for why, said in by_reason.items()])
    yield ""


def _section(title: str, lines: list[str]) -> list[str]:
    return ["", title, *(f"- {line}" for line in lines)] if lines else []


def _stated(each: Taken) -> str:
    return f"{each.setting.partition('.')[2]} {_told(each.value)} ({each.said})"


def _assumed(each: Assumed) -> str:
    source = f" ({each.source})" if each.source else ""
    return f"{each.setting} {_told(each.value)}: {each.why}{source}"


def _told(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return "none" if value is None else str(value).lower()
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def summary(imported: Imported, stated: Collection[str] = ()) -> list[str]:
    """What a terminal is told before the answer: counts, what was assumed, and what changes memory unpriced.

    stated: settings that the user states beside the file.
    """
    imported = imported._replace(assumed=tuple(each for each in imported.assumed if each.setting not in stated))
    counts = f"{len(imported.taken)} settings taken, {len(imported.assumed)} assumed, {len(imported.ignored)} ignored"
    lines = [f"{imported.file}, {imported.title}: {counts}; `mla-cost import {imported.file}` lists them"]
    doubtful = [each for each in imported.assumed if not each.source]
    lines += [f"assumed: {_assumed(each)}" for each in doubtful]
    usual = [f"{each.setting} {_told(each.value)}" for each in imported.assumed if each.source]
    lines += [f"by the framework's defaults: {', '.join(usual)}"] if usual else []
    lines += [f"not priced: {each.said}: {each.why}" for each in imported.ignored if each.priced]
    return lines
