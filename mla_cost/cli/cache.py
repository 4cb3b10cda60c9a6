"""`mla-cost cache`: bytes of the KV cache of a token, a sequence and a batch."""

from __future__ import annotations

import json
import sys
from typing import Annotated, Literal

import typer


def cache(
    model: Annotated[
        list[str] | None,
        typer.Option(help="A model of the catalogue or of configs/caches.yaml, repeatable; all where none is named."),
    ] = None,
    context: Annotated[str, typer.Option(help="Tokens of a sequence; 128k is 131,072.")] = "128k",
    batch: Annotated[int, typer.Option(help="Sequences at once.")] = 1,
    device: Annotated[str | None, typer.Option(help="A device: how many sequences fit beside the weights.")] = None,
    tp: Annotated[int, typer.Option(help="Tensor-parallel ranks that divide weights and heads, not latents.")] = 1,
    cache_dtype: Annotated[str, typer.Option(help="bf16, or fp8 with scales.")] = "bf16",
    weights: Annotated[str, typer.Option(help="Dtype of the weights beside: bf16 or fp8.")] = "bf16",
    form: Annotated[str, typer.Option(help="A form whose heads keep keys and values of their own.")] = "",
    output: Annotated[Literal["table", "json"], typer.Option("--format", help="How to print it.")] = "table",
) -> None:
    """Tell how many bytes decoding keeps of a token, a sequence and a batch, and how many sequences fit."""
    from mla_cost.inputs.counts import count_of
    from mla_cost.studies.cache import cache as price

    rows = price(
        model, context=context, batch=batch, device=device, tp=tp, dtype=cache_dtype, weights=weights, form=form
    )
    reported = [row.to_dict() for row in rows]
    if output == "json":
        answer = {"schema": "mla-cost/cache/1", "context": count_of(context), "batch": batch, "caches": reported}
        sys.stdout.write(json.dumps(answer, indent=2) + "\n")
        return
    from mla_cost.views import cache_table

    cache_table.show(reported, count_of(context), batch)
