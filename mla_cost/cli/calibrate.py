"""`mla-cost calibrate FILE.csv`: a device's ceilings from step times of one's own."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Literal

import typer


def calibrate(
    file: Annotated[
        Path, typer.Argument(metavar="FILE.csv", help="A header of settings and `seconds`, and a step a row.")
    ],
    device: Annotated[str, typer.Option(help="The device that the steps ran on, whose ceilings are scaled.")],
    save: Annotated[
        Path | None, typer.Option("--save", "-o", metavar="FILE.yaml", help="Write the device with scaled ceilings.")
    ] = None,
    output: Annotated[Literal["table", "json"], typer.Option("--format", help="How to print it.")] = "table",
) -> None:
    """Fit a device's ceilings to measured steps by least squares, and say which terms they cannot tell apart."""
    from mla_cost.cli import plotting
    from mla_cost.studies.calibration import calibration

    found = calibration(file, device)
    if save is not None:
        with plotting.writing(save):
            save.write_text(found.text(), encoding="utf-8")
    if output == "json":
        sys.stdout.write(json.dumps(found.to_dict(), indent=2) + "\n")
        return
    from mla_cost.views import calibration_table

    calibration_table.show(found.to_dict())
