"""`mla-cost init`: a plan of a whole model as YAML, with a comment to every setting."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer


def init(
    model: Annotated[str, typer.Option(help="A model of the catalogue, or the path of a file.")] = "deepseek-v3",
    device: Annotated[str, typer.Option(help="A device of the catalogue, or the path of a file.")] = "h100-80gb",
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE.yaml", help="Write it to a file that is not there.")
    ] = None,
) -> None:
    """Write an annotated plan of a whole model: every setting with what it takes and its default."""
    from mla_cost.errors import InputError
    from mla_cost.inputs.annotated import annotated

    text = annotated(model, device)
    if output is None:
        sys.stdout.write(text)
        return
    if output.suffix.lower() not in {".yaml", ".yml"}:
        raise InputError("the file name must say what it shall hold", file=str(output), allowed=".yaml, .yml")
    try:
        with output.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise InputError("there is such a file already; name another one", file=str(output)) from None
    except (OSError, ValueError) as error:
        raise InputError(f"cannot write it: {getattr(error, 'strerror', error)}", file=str(output)) from None
    sys.stderr.write(f"mla-cost: wrote {output}: `mla-cost plan {output}` prices it, `mla-cost check` reads it\n")
