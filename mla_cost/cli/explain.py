"""`mla-cost explain FORM`: where a number comes from, in symbols."""

from __future__ import annotations

import sys
from typing import Any

from mla_cost.cli.flags import Given, command
from mla_cost.inputs.table import TABLE


@command
def explain(given: Given) -> None:
    """Show the symbolic formula of a form, term by term, with the key it holds for.

    Without numbers it holds for sp > 1 and more than one head per rank; --one and --without ask for another variant.
    With --model, --sp or --seq-len it is the variant of that plan, and each term's value stands beside it.
    """
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

    flags = {name: value for name, value in given.flags().items() if value is not None}
    assigned, form, quantity = given.assigned(), given["form"], given["quantity"]
    one, without = given["one"] or (), given["without"] or ()
    if not assigned and not any(TABLE[name].formula == "plan" for name in flags):
        return api.explain_variant(form, quantity, flags, one, without)
    if one or without:
        raise InputError("--one and --without choose a variant where no plan does; leave out the plan's numbers")
    return api.explain_plan(form, quantity, flags, assigned)
