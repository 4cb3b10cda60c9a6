"""`mla-cost plan --plot FILE`: imported only when a picture is asked for."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from mla_cost import api
from mla_cost.errors import InputError
from mla_cost.explaining import schedules
from mla_cost.explaining.pictures import Picture
from mla_cost.inputs.settings import PlanSettings
from mla_cost.results import Plan
from mla_cost.studies.sweep.result import extra
from mla_cost.views.memory import DrawnTimeline, draw_model, draw_timelines
from mla_cost.views.studies import draw_communication, draw_levers, draw_schedule

MEMORY: Final = "memory"
COMMUNICATION: Final = "communication"
SCHEDULE: Final = "schedule"


def check(path: Path) -> None:
    """Whether a picture can be drawn into that file, asked before anything is printed.

    Raises:
        InputError: a name that does not say what it shall be, a folder that is not there, or no matplotlib.

    """
    if path.suffix.lower() not in {".png", ".svg"}:
        raise InputError("the file name must say what it shall be", file=str(path), allowed=".png, .svg")
    if not os.path.isdir(path.parent):  # noqa: PTH112  (Path.is_dir raises where a name is too long)
        raise InputError("cannot write it: no such folder", file=str(path), allowed="a file in a folder that exists")
    if os.path.isdir(path):  # noqa: PTH112  (as above)
        raise InputError("cannot write it: it is a folder", file=str(path), allowed="a file in a folder that exists")
    extra("matplotlib", "plot")


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Draw in here.

    Raises:
        InputError: the file cannot be written.

    """
    try:
        yield
    except OSError as error:
        raise InputError(f"cannot write it: {error.strerror}", file=str(path)) from None


def draw_plan(settings: PlanSettings, answer: Plan, path: Path, what: str = MEMORY) -> None:
    """Write a picture of a plan. Memory: live bytes over time, at the model scope below what every stage holds.

    Raises:
        InputError: a file that cannot be written, or a plan that has no such picture.

    """
    with writing(path):
        DRAWN[what](settings, answer, path)


def _title(inputs: Mapping[str, Any]) -> str:
    about = f"{inputs['model_title']}: {inputs['seq_len']:,} tokens, micro-batch {inputs['micro_batch']}"
    if inputs["scope"] == "model":
        return f"{about}, {', '.join(f'{axis} {inputs[axis]}' for axis in ('tp', 'sp', 'pp', 'ep', 'dp'))}"
    blocks = "one attention block" if inputs["layers"] == 1 else f"{inputs['layers']} attention blocks"
    return f"{about}, sp {inputs['sp']}, {blocks}"


def _draw_memory(settings: PlanSettings, answer: Plan, path: Path) -> None:
    title = _title(answer.inputs)
    if answer.inputs["scope"] == "model":
        priced = [row for row in answer.results if row.memory.stages]
        draw_model(path, title, priced, _timelines(settings))
    else:
        draw_timelines(path, title, _timelines(settings))


def _draw_levers(settings: PlanSettings, answer: Plan, path: Path) -> None:
    """The tornado of the first form that has numbers."""
    if not settings.device:
        raise InputError("changes are told of a device; name one with --device", field="--picture")
    row = next(row for row in answer.results if row.memory.allocated_peak_bytes is not None)
    one = settings.model_copy(update={"form": (row.form,), "device": (row.device,)})
    (found,) = api.with_levers(one).results
    draw_levers(path, f"{_title(answer.inputs)}: what a change does to {row.form} on {row.device}", found)


def _draw_communication(settings: PlanSettings, answer: Plan, path: Path) -> None:
    sending = [row for row in answer.results if row.communication.collectives]
    if not sending:
        raise InputError("nothing is sent, so there is nothing to draw", field="--picture", value=COMMUNICATION)
    step = "one optimizer step" if settings.scope == "model" else "forward and backward"
    draw_communication(path, f"{_title(answer.inputs)}: what one rank sends, {step}", sending)


def _draw_schedule(settings: PlanSettings, answer: Plan, path: Path) -> None:
    if settings.scope != "model" or settings.pp == 1:
        raise InputError("one stage has no schedule; ask for pp of 2 or more", field="--picture", value=SCHEDULE)
    draw_schedule(path, f"{_title(answer.inputs)}, {settings.micro_batches} micro-batches", schedules.rows(settings))


DRAWN: Final[dict[str, Callable[[PlanSettings, Plan, Path], None]]] = {
    MEMORY: _draw_memory,
    "levers": _draw_levers,
    COMMUNICATION: _draw_communication,
    SCHEDULE: _draw_schedule,
}


def _timelines(settings: PlanSettings) -> list[DrawnTimeline]:
    return [timeline_of(it) for it in api.pictures(settings)]


def timeline_of(it: Picture) -> DrawnTimeline:
    """What is alive around the peak, with the words of its title."""
    return DrawnTimeline(
        title=f"{it.form}, kernel {it.kernel}{f' on {it.device}' if it.device else ''}: {it.what} around the peak",
        usable_bytes=it.usable_bytes,
        ops=it.ops,
        phases=it.phases,
        peak=it.peak,
        layers=it.layers,
    )
