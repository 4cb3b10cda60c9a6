"""`mla-cost crossover A B`: where one form or scheme stops beating another."""

from __future__ import annotations

import json
import sys

from mla_cost.cli.flags import Given, command


@command
def crossover(given: Given) -> None:
    """Find where one form or scheme stops beating another, as a number and as the inequality it comes from."""
    from mla_cost.cli.sweep import axes_of
    from mla_cost.studies.crossover import crossover as find

    over = axes_of(given["over"]) if given["over"] else {}
    if given["plot"] is not None:
        from mla_cost.cli import plotting

        plotting.check(given["plot"])
    found = find(given["first"], given["second"], given.settings(), over, given["quantity"])
    answer = found.to_dict()
    if given["plot"] is not None:
        from mla_cost.views import crossover_table

        crossover_table.draw(given["plot"], answer)
    if given["output"] == "json":
        sys.stdout.write(json.dumps(answer, indent=2) + "\n")
    else:
        from mla_cost.views import crossover_table

        crossover_table.show(answer)
