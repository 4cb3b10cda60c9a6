"""`mla-cost snapshot FILE`: a memory snapshot of torch beside a plan."""

from __future__ import annotations

import json
import sys

from mla_cost.cli.flags import Given, command


@command
def snapshot(given: Given) -> None:
    """Set a snapshot of torch.cuda.memory._dump_snapshot beside the predicted timeline of a plan."""
    from mla_cost.inputs.snapshots import read
    from mla_cost.studies.snapshot import compare
    from mla_cost.views import snapshot as view

    recorded = read(str(given["recorded"]))
    found = compare(recorded, given.settings()).to_dict()
    sys.stdout.write(json.dumps(found, indent=2) + "\n" if given["output"] == "json" else view.text(found))
