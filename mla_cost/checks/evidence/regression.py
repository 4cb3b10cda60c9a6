"""What a larger allocated peak is made of: algebra, copies and workspace, for one block and for many."""

from __future__ import annotations

from typing import Any, NamedTuple

from mla_cost import api
from mla_cost.checks.evidence.fused import questions
from mla_cost.declared import defaults
from mla_cost.results import Result


class Share(NamedTuple):
    """Bytes by group of tensors; rest: what the groups do not account for (the ends of a stack)."""

    device: str
    layers: int
    groups: dict[str, int]
    rest: int
    total: int


def shares() -> tuple[Share, ...]:
    """The regression on each device, for each number of equal blocks."""
    asked = questions()["regression"]
    return tuple(_share(asked, device, layers) for device in asked["devices"] for layers in asked["layers"])


def _share(asked: dict[str, Any], device: str, layers: int) -> Share:
    one, many = _pair(asked, device, 1), _pair(asked, device, layers)
    # In a stack every block but the one at the peak holds what it saved; workspace is held once.
    groups = {
        row.tensor: (layers - 1) * row.saved_delta_bytes + row.allocated_peak_delta_bytes
        for row in one[0].compared_to_explicit
    }
    total = _peak(many[0]) - _peak(many[1])
    return Share(device, layers, groups, total - sum(groups.values()), total)


def _pair(asked: dict[str, Any], device: str, layers: int) -> tuple[Result, Result]:
    plan = {"kernel": defaults.ATTENTION_KERNEL, **asked["plan"]}  # as the published regression was measured
    answer = api.plan(device=device, scope="attention", layers=layers, **plan)
    return answer[asked["of"]], answer.results[0]


def _peak(result: Result) -> int:
    assert result.memory.allocated_peak_bytes is not None
    return result.memory.allocated_peak_bytes
