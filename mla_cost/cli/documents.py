"""`mla-cost documents LENGTHS`: packed documents over ranks."""

from __future__ import annotations

import json
import sys
from typing import Annotated, Literal

import typer


def documents(
    lengths: Annotated[
        str, typer.Argument(help="32k,16k,8k*2, a YAML file of length: count, or lognormal:MEDIAN*COUNT@SEED.")
    ],
    model: Annotated[str, typer.Option(help="A model of the catalogue.")] = "deepseek-v3",
    sp: Annotated[int, typer.Option("--sp", "--cp", help="Ranks that share the pack.")] = 8,
    limit: Annotated[str | None, typer.Option(help="Tokens of a rank, where a document gets ranks by length.")] = None,
    device: Annotated[str | None, typer.Option(help="Whose ceilings times stand on.")] = None,
    way: Annotated[list[str] | None, typer.Option(help="One way to deal them, repeatable; all that were read.")] = None,
    inferred: Annotated[bool, typer.Option(help="Also ways whose transfers are ours, from words.")] = False,
    output: Annotated[Literal["table", "json"], typer.Option("--format", help="How to print it.")] = "table",
) -> None:
    """Tell how packed documents lie on ranks: balance, padding, and what travels under every way to deal them."""
    from mla_cost.studies.documents import documents as price
    from mla_cost.studies.documents import tokens

    most = tokens("limit", limit) if limit else None
    answer = price(lengths, model=model, sp=sp, limit=most, ways=way or (), inferred=inferred, device=device).to_dict()
    if output == "json":
        sys.stdout.write(json.dumps(answer, indent=2) + "\n")
        return
    from mla_cost.views import documents_table

    documents_table.show(answer)
