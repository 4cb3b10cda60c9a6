"""`--from FILE`: a launch script in place of a plan file, and what a terminal is told of it. Imported when used."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from mla_cost.cli.flags import Given
from mla_cost.errors import InputError
from mla_cost.inputs import importers
from mla_cost.inputs.importers.text import summary


def settings(given: Given, flags: Mapping[str, Any], assigned: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of the file; dp by flag decides how many micro-batches its global batch makes.

    Raises:
        InputError: a plan file beside it, and what is wrong in it.

    """
    if given["file"] is not None:
        raise InputError("a plan file and --from are both where a plan starts; give one of them", field="--from")
    dp = assigned.get("dp", flags.get("dp"))
    model = assigned.get("model", flags.get("model"))
    found = importers.read(given["source"], dp=dp if isinstance(dp, int) else None, model=model, strict=given["strict"])
    stated = {*assigned, *(name for name, value in flags.items() if value is not None)}
    if not given.values.get("quiet"):
        sys.stderr.write("".join(f"{line}\n" for line in summary(found, stated)))
    return found.settings
