"""`mla-cost oom`: an out-of-memory error beside a plan."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from mla_cost.cli.flags import Given, command


@command
def oom(given: Given) -> None:
    """Read torch's out-of-memory error beside a plan: what was asked for, where memory went, what would have fitted."""
    from mla_cost.cli import progress
    from mla_cost.inputs.oom_text import read
    from mla_cost.studies.oom import examine
    from mla_cost.views import oom as view

    text, file = _text(given["log"])
    error = read(text, file)
    settings = given.settings()
    with progress.shown("changes"):
        found = examine(error, settings).to_dict()
    sys.stdout.write(json.dumps(found, indent=2) + "\n" if given["output"] == "json" else view.text(found))


def _text(given: Path | None) -> tuple[str, str | None]:
    """The text of a log, or of stdin where none is named or `-` is."""
    if given is None or str(given) == "-":
        return sys.stdin.read(2**24), None
    from mla_cost.inputs.yaml_files import read_log

    return read_log(str(given)), str(given)
