"""`mla-cost plan --plot FILE`: imported only when a picture is asked for."""

from __future__ import annotations

import os
from pathlib import Path

from mla_cost import api
from mla_cost.errors import InputError
from mla_cost.explaining.pictures import Picture
from mla_cost.inputs.settings import PlanSettings
from mla_cost.results import Plan
from mla_cost.studies.sweep.result import extra
from mla_cost.views.memory import DrawnTimeline, draw_model, draw_timelines


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


def draw_plan(settings: PlanSettings, answer: Plan, path: Path) -> None:
    """Write the picture of a plan: live bytes over time, at the model scope below what every stage holds.

    Raises:
        InputError: a file that cannot be written.

    """
    inputs = answer.inputs
    about = f"{inputs['model_title']}: {inputs['seq_len']:,} tokens, micro-batch {inputs['micro_batch']}"
    try:
        if inputs["scope"] == "model":
            degrees = ", ".join(f"{axis} {inputs[axis]}" for axis in ("tp", "sp", "pp", "ep", "dp"))
            priced = [row for row in answer.results if row.memory.stages]
            draw_model(path, f"{about}, {degrees}", priced, _timelines(settings))
        else:
            blocks = "one attention block" if inputs["layers"] == 1 else f"{inputs['layers']} attention blocks"
            draw_timelines(path, f"{about}, sp {inputs['sp']}, {blocks}", _timelines(settings))
    except OSError as error:
        raise InputError(f"cannot write it: {error.strerror}", file=str(path)) from None


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
