"""What a rank sends inside its node and to other nodes, where ranks lie in the usual order: tp innermost, then sp.

Taken is the rank that sends most between nodes. All-to-alls, gathers and scatters reach every other rank alike; what
goes from rank to rank leaves the node where a neighbour is in another.
"""

from __future__ import annotations

from typing import NamedTuple

from mla_cost.language.evaluate import Evaluation
from mla_cost.pricing.step_traffic import PHASES


class Near(NamedTuple):
    """Bytes that one rank sends in a phase, inside its node and between nodes."""

    inside: int
    between: int

    @property
    def all(self) -> int:
        """Both."""
        return self.inside + self.between


def near(at: Evaluation, phase: str, node: int, tp: int = 1) -> Near:
    """What a program sends over the ranks of a sequence in one of PHASES. node: devices of a node."""
    account, inside, between = at.account, 0, 0
    for called, (_, wire) in zip(account.timeline.collectives, account.payloads, strict=True):
        if called.axis != "sp" or called.phase not in PHASES[phase]:
            continue
        ranks, sent = at.values[called.ranks], at.sizes[wire]
        apart = tp * at.values["A"] if called.ranks == "C" else tp
        out = _between(called.kind, ranks, max(1, min(ranks, node // apart)), sent)
        inside, between = inside + sent - out, between + out
    return Near(inside, between)


def _between(kind: str, ranks: int, together: int, sent: int) -> int:
    """Bytes to other nodes of a group of which so many ranks lie together."""
    if together == ranks:
        return 0
    return sent if kind == "point_to_point" else sent * (ranks - together) // (ranks - 1)
