"""`mla-cost fit`: the longest sequence, the least sp, the fewest devices."""

from __future__ import annotations

import sys

from mla_cost.cli.flags import Given, command


@command
def fit(given: Given) -> None:
    """Find the longest sequence that fits, the least sp and the fewest devices, per device and form."""
    from mla_cost.cli import progress
    from mla_cost.errors import InputError
    from mla_cost.studies.longest import of
    from mla_cost.studies.longest.result import MAX_SEQ_LEN

    settings = given.settings()
    longest = MAX_SEQ_LEN if given["max_seq_len"] is None else given["max_seq_len"]
    own = {"max_seq_len": longest, "zigzag": given["zigzag"], "global_batch": given["global_batch"]}
    own |= {name: given[name] for name in ("max_idle", "by") if given[name] is not None}
    with progress.shown("what fits") as watch:
        found = of(settings, **own, watch=watch)
    if given["quiet"]:
        pass
    elif given["output"] == "json":
        sys.stdout.write(found.to_json() + "\n")
    elif not found.refused:
        from mla_cost.views import fit_table

        fit_table.show(found.to_dict(), notes=not given["no_notes"])
    if found.refused:
        raise InputError(found.refused)
