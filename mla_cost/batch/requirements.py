"""What schemes ask of sizes, at many points."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from mla_cost.language.program import Requirement

_FIELDS: Final = {"seq_len": "S", "sp": "P", "heads": "n"}


def fails(need: Requirement, values: Mapping[str, Any]) -> Any:
    """Where a requirement is broken: a truth value, or an array of them."""
    what, by = values[_FIELDS[need.what]], values[_FIELDS[need.by]]
    if need.times > 1:
        by = by * np.where(np.asarray(by) > 1, need.times, 1)
    return np.floor(what / by) * by != what if need.kind == "divides" else what > by
