"""`mla-cost compare`: every form under every scheme at one setting."""

from __future__ import annotations

import json
import sys

from mla_cost.cli.flags import Given, command


@command
def compare(given: Given) -> None:
    """Compare forms and schemes at one setting: what is kept, what is sent inside and between nodes, who beats whom."""
    from mla_cost.errors import InputError
    from mla_cost.studies.compare import compare as price

    settings = given.settings()
    schemes = [settings.scheme] if settings.scheme else []
    found = price(settings, schemes)
    answer = found.to_dict()
    if given["output"] == "json":
        sys.stdout.write(json.dumps(answer, indent=2) + "\n")
    elif found.rows:
        from mla_cost.views import compare_table

        compare_table.show(answer, refused=given["refused"])
    if not found.rows:
        raise InputError(f"no combination has a program; the first says: {found.refused[0].why}")
