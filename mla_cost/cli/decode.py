"""`mla-cost decode`: the least that a decoding step reads and takes."""

from __future__ import annotations

import json
import sys
from typing import Annotated, Literal

import typer


def decode(
    model: Annotated[str, typer.Option(help="A model of the catalogue.")] = "deepseek-v3",
    context: Annotated[str, typer.Option(help="Tokens of each sequence; 128k is 131,072.")] = "128k",
    batch: Annotated[int, typer.Option(help="Sequences at once.")] = 64,
    device: Annotated[str, typer.Option(help="A device of the catalogue.")] = "h100-80gb",
    tp: Annotated[int, typer.Option(help="Tensor-parallel ranks that divide weights and heads, not latents.")] = 8,
    cache_dtype: Annotated[str, typer.Option(help="bf16, or fp8 with scales.")] = "bf16",
    weights: Annotated[str, typer.Option(help="Dtype of the weights: bf16 or fp8.")] = "fp8",
    scan: Annotated[str, typer.Option(help="none, or ffd: a low-bit scan picks the blocks that are read.")] = "none",
    launch: Annotated[str, typer.Option(help="kernels, or mpk: the whole step in one launch.")] = "kernels",
    overhead_us: Annotated[
        float | None, typer.Option(help="What operators of a layer wait beyond reading memory; else as published.")
    ] = None,
    output: Annotated[Literal["table", "json"], typer.Option("--format", help="How to print it.")] = "table",
) -> None:
    """Estimate the bytes that a decoding step reads and the least time it takes, latent or expanded."""
    from mla_cost.studies.decode import COVERS
    from mla_cost.studies.decode import decode as price

    found = price(
        model, context=context, batch=batch, device=device, tp=tp, dtype=cache_dtype, weights=weights, scan=scan,
        launch=launch, overhead_us=overhead_us,
    )  # fmt: skip
    steps = [step.to_dict() for step in found]
    if output == "json":
        answer = {"schema": "mla-cost/decode/1", "model": model, "device": device, "covers": COVERS, "steps": steps}
        sys.stdout.write(json.dumps(answer, indent=2) + "\n")
        return
    from mla_cost.views import decode_table

    decode_table.show(steps, COVERS)
