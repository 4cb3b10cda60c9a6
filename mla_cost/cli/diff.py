"""`mla-cost diff A B`: two plans side by side."""

from __future__ import annotations

import sys

from mla_cost.cli.flags import Given, command


@command
def diff(given: Given) -> None:
    """Set two plans, configs, launch scripts or results side by side: settings, totals and what accounts for them."""
    from mla_cost.studies.diff import diff as compared
    from mla_cost.studies.diff import to_json
    from mla_cost.views import diff as view

    first, second = str(given["first"]), str(given["second"])
    found = compared(first, second, given["form"], given["device"])
    sys.stdout.write(f"{to_json(found)}\n" if given["output"] == "json" else view.text(found.to_dict()))
