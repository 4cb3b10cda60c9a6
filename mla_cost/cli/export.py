"""`mla-cost export`: a plan as the settings of a framework."""

from __future__ import annotations

import json
import sys

from mla_cost.cli.flags import Given, command


@command
def export(given: Given) -> None:
    """Print the flags of a framework for a plan, and what has no flag there."""
    from mla_cost.inputs import exporters

    settings = given.settings()
    found = exporters.export(settings, _framework(given["to"]))
    left = dict(found.without)
    if given["output"] == "json":
        schema = "mla-cost/export/1"
        told = {"schema": schema, "framework": found.framework, "text": found.text, "without_words": left}
        sys.stdout.write(json.dumps(told, indent=2) + "\n")
        return
    sys.stdout.write(found.text)
    for name, value in left.items():
        sys.stderr.write(f"no word for {name} {value}: the run decides it elsewhere, or not at all\n")


def _framework(given: str | None) -> str:
    from mla_cost.errors import InputError
    from mla_cost.inputs import exporters

    names = [name.removesuffix("-json") for name in exporters.exporters()]
    if given not in names:
        said = "name the framework" if given is None else f"unknown framework {given}"
        raise InputError(said, field="--to", allowed=", ".join(names))
    return next(name for name in exporters.exporters() if name.removesuffix("-json") == given)
