"""`mla-cost check`: faults of files, each with its place, for editors and pre-commit."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

if TYPE_CHECKING:
    from mla_cost.errors import InputError


def check(
    files: Annotated[
        list[Path],
        typer.Argument(metavar="FILE...", help="Plans, models, devices, framework configs or launch scripts."),
    ],
    output: Annotated[
        Literal["text", "json"], typer.Option("--format", help="file:line:column: message, or the same as JSON.")
    ] = "text",
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing: the exit code tells.")] = False,
) -> None:
    """Check plan, model and device files and launch scripts. Exits with 1 where one has a fault."""
    from mla_cost.cli.flags import require_effect
    from mla_cost.inputs.checked import faults

    require_effect("--quiet", quiet and output != "text", f"--format {output}")
    found = [(file, fault) for file in files for fault in sorted(faults(file), key=_place)]
    if output == "json":
        reported = [fault.to_dict() for _, fault in found]
        sys.stdout.write(json.dumps({"schema": "mla-cost/check/1", "faults": reported}, indent=2) + "\n")
    elif not quiet:
        sys.stdout.writelines(f"{fault.at_editor()}\n" for _, fault in found)
    raise typer.Exit(1 if found else 0)


def _place(fault: InputError) -> tuple[int, int]:
    return fault.line or 0, fault.column or 0
