"""`mla-cost explain FORM`: where a number comes from, in symbols."""

from __future__ import annotations

import sys
from typing import Any, Final

from mla_cost.cli.flags import Given, command
from mla_cost.inputs.table import TABLE

_NOT_BOTH: Final = "--one and --without choose a variant where no plan does; leave out the plan's numbers"


@command
def explain(given: Given) -> None:
    """Show the symbolic formula of a form, term by term, with the key it holds for.

    Without numbers it holds for sp > 1 and more than one head per rank; --one and --without ask for another variant.
    With --model, --sp or --seq-len it is the variant of that plan, and each term's value stands beside it.
    --program prints the program in place of a formula; --layer that of a layer, --set profile=megatron of a profile.
    """
    if given["program"] or given["layer"] is not None:
        _show_program(given)
        return
    answer = _answer(given)
    if given["latex"]:
        sys.stdout.write(f"{answer.latex()}\n")
    elif given["output"] == "json":
        sys.stdout.write(f"{answer.record().to_json()}\n")
    else:
        from mla_cost.views import formula

        formula.show(answer.record())


def _answer(given: Given) -> Any:
    """The formula of a plan where its numbers are given, else that of a variant."""
    from mla_cost import api
    from mla_cost.errors import InputError

    form, one, without = (given[name] for name in ("form", "one", "without"))
    quantity = "saved" if given["quantity"] is None else given["quantity"]
    flags, assigned = _settings(given)
    if not _planned(flags, assigned):
        return api.explain_variant(form, quantity, flags, one or (), without or ())
    if one or without:
        raise InputError(_NOT_BOTH)
    return api.explain_plan(form, quantity, flags, assigned)


def _settings(given: Given) -> tuple[dict[str, Any], dict[str, Any]]:
    """The flags that were given, and what --set says."""
    return {name: value for name, value in given.flags().items() if value is not None}, given.assigned()


def _planned(flags: dict[str, Any], assigned: dict[str, Any]) -> bool:
    """Whether there are numbers of a plan, and not a variant's styles alone."""
    return bool(assigned) or any(TABLE[name].formula == "plan" for name in flags)


def _show_program(given: Given) -> None:
    """Print a program: of a plan where it has numbers or a layer, else of a variant."""
    from mla_cost import api
    from mla_cost.errors import InputError

    form, layer, one, without = (given[name] for name in ("form", "layer", "one", "without"))
    flags, assigned = _settings(given)
    if layer is not None and not given["program"]:
        raise InputError("says which program; ask for it with --program", field="--layer", value=layer)
    if layer is None and not _planned(flags, assigned):
        listing = api.program_of_variant(form, flags, one or (), without or ())
    elif one or without:
        raise InputError(_NOT_BOTH)
    else:
        listing = api.program_of_plan(form, "attention" if layer is None else layer, flags, assigned)
    if given["output"] == "json":
        sys.stdout.write(f"{listing.to_json()}\n")
        return
    from mla_cost.views import program

    program.show(listing)
