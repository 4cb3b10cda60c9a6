"""`mla-cost explain FORM`: where a number comes from, in symbols."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

Names = list[str] | None


def explain(
    form: Annotated[str, typer.Argument(help="explicit, absorbed or laga.")],
    quantity: Annotated[str, typer.Option(metavar="saved|peak|payload|wire|flops", help="Which figure.")] = "saved",
    program: Annotated[
        bool, typer.Option("--program", help="Print the program as it runs: scheme, kernel, remat, profile in place.")
    ] = False,
    layer: Annotated[
        str | None,
        typer.Option(metavar="dense|moe|head|...", help="With --program: a layer of a model, not the block."),
    ] = None,
    profile: Annotated[
        str | None, typer.Option(metavar="reference|megatron", help="With --layer: whose implementation runs.")
    ] = None,
    tp: Annotated[int | None, typer.Option(help="With --layer: ranks of tensor parallelism.")] = None,
    remat: Annotated[str | None, typer.Option(help="What is dropped and run again: none, full, core_attn, ...")] = None,
    latex: Annotated[bool, typer.Option("--latex", help="Print the formula as LaTeX.")] = False,
    output: Annotated[str, typer.Option("--format", metavar="table|json", help="How to print the terms.")] = "table",
    kernel: Annotated[str | None, typer.Option(help="How attention is executed.")] = None,
    scheme: Annotated[str | None, typer.Option(help="What crosses ranks; each form has its usual one.")] = None,
    one: Annotated[
        Names, typer.Option(metavar="sp|heads|batch|positions", help="A dim of size one; repeat it.")
    ] = None,
    without: Annotated[Names, typer.Option(metavar="query-latent|rope", help="An absent part; repeat it.")] = None,
    model: Annotated[str | None, typer.Option(help="Print each term's value for this model.")] = None,
    seq_len: Annotated[int | None, typer.Option(help="Sequence length, all ranks together.")] = None,
    micro_batch: Annotated[int | None, typer.Option(help="Sequences in a micro-batch.")] = None,
    sp: Annotated[
        int | None, typer.Option("--sp", "--cp", "--context-parallel-size", help="Ranks that share one sequence.")
    ] = None,
    dtype: Annotated[
        str | None, typer.Option(metavar="bf16|fp16|fp32", help="Activations, weights, gradients.")
    ] = None,
    v_layout: Annotated[str | None, typer.Option(metavar="view|contiguous", help="V as a view or a copy.")] = None,
    value_padding: Annotated[str | None, typer.Option(metavar="none|qk", help="Pad V to the width of Q and K.")] = None,
    attention_layout: Annotated[
        str | None, typer.Option(metavar="sbnd|bsht|bnsd", help="The order of letters in eager attention.")
    ] = None,
    names: Annotated[
        str | None,
        typer.Option(metavar="rebound|held", help="Whether a name of the block's code goes where it is bound again."),
    ] = None,
    assign: Annotated[Names, typer.Option("--set", metavar="FIELD=VALUE", help="Any field: dims.heads=64.")] = None,
) -> None:
    """Show the symbolic formula of a form, term by term, with the key it holds for.

    Without numbers it holds for sp > 1 and more than one head per rank; --one and --without ask for another variant.
    With --model, --sp or --seq-len it is the variant of that plan, and each term's value stands beside it.
    """
    from mla_cost import api
    from mla_cost.errors import InputError
    from mla_cost.inputs.plan_files import assignments

    if output not in {"table", "json"}:
        raise InputError("unknown format", field="--format", value=output, allowed="table, json")
    if not program and (layer or profile or tp):
        raise InputError("--layer, --profile and --tp say which program; ask for it with --program")
    plan = {"model": model, "seq_len": seq_len, "micro_batch": micro_batch, "sp": sp}
    style = {
        "kernel": kernel,
        "scheme": scheme,
        "dtype": dtype,
        "v_layout": v_layout,
        "value_padding": value_padding,
        "attention_layout": attention_layout,
        "names": names,
        "remat": remat,
    }
    given = {name: value for name, value in (plan | style).items() if value is not None}
    assigned = assignments(assign)
    if program:
        of_layer = {name: value for name, value in (("profile", profile), ("tp", tp)) if value is not None}
        _show_program(form, layer, given | of_layer, assigned, one or [], without or [], output)
        return
    if assigned or any(value is not None for value in plan.values()):
        if one or without:
            raise InputError("--one and --without choose a variant where no plan does; leave out the plan's numbers")
        answer = api.explain_plan(form, quantity, given, assigned)
    else:
        answer = api.explain_variant(form, quantity, given, one or (), without or ())
    if latex:
        sys.stdout.write(f"{answer.latex()}\n")
    elif output == "json":
        sys.stdout.write(f"{answer.record().to_json()}\n")
    else:
        from mla_cost.views import formula

        formula.show(answer.record())


def _show_program(
    form: str,
    layer: str | None,
    given: dict[str, object],
    assigned: dict[str, object],
    one: list[str],
    without: list[str],
    output: str,
) -> None:
    """Print a program: of a plan where it has numbers or a layer, else of the usual variant."""
    from mla_cost import api
    from mla_cost.errors import InputError

    planned = layer or assigned or {"model", "seq_len", "micro_batch", "sp", "tp", "profile"} & given.keys()
    if planned and (one or without):
        raise InputError("--one and --without choose a variant where no plan does; leave out the plan's numbers")
    if planned:
        listing = api.program_of_plan(form, layer or "attention", given, assigned)
    else:
        listing = api.program_of_variant(form, given, one, without)
    if output == "json":
        sys.stdout.write(f"{listing.to_json()}\n")
    else:
        from mla_cost.views import program

        program.show(listing)
