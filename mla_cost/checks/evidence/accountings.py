"""How a ratio of communication could have been counted: each accounting tried, and which gives the published ratio."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from mla_cost.checks.evidence.source import PublishedRow
from mla_cost.results import CollectiveCost, Result

Weigh = Callable[[CollectiveCost], float]


def accountings(row: PublishedRow, first: Result, second: Result, dims: Mapping[str, int]) -> str:
    """The accountings tried, in words."""
    assert isinstance(row.published, float)
    ratios = tried(first, second, dims)
    listed = ", ".join(f"{name} {ratio:.3f}" for name, ratio in ratios.items())
    assert row.decimals is not None
    same = [name for name, ratio in ratios.items() if round(ratio, row.decimals) == row.published]
    found = f"within its rounding: {' and '.join(same) or 'none'}"
    return f"accountings tried: {listed}; {found}"


def tried(first: Result, second: Result, dims: Mapping[str, int]) -> dict[str, float]:
    """The ratio of two results under each accounting."""
    latent = dims["kv_lora_rank"] + dims["qk_rope_head_dim"]
    one_head = dims["qk_nope_head_dim"] + dims["qk_rope_head_dim"] + dims["v_head_dim"]
    ways: dict[str, tuple[Weigh, tuple[str, ...]]] = {
        "plain payload": (_payload(1), ("forward",)),
        "payload without the shared key's rotated part": (_payload(dims["kv_lora_rank"] / latent), ("forward",)),
        "latent counted as one head of K and V": (_payload(one_head / latent), ("forward",)),
        "bytes on the wire": (lambda cost: cost.wire_bytes, ("forward",)),
        "all-to-alls at 2(P-1)/P of the payload, the latent once": (_twice, ("forward",)),
        "plain payload of forward and backward": (_payload(1), ("forward", "backward")),
    }
    return {name: _sum(first, *way) / _sum(second, *way) for name, way in ways.items()}


def _payload(latent: float) -> Weigh:
    """Payload, a gathered tensor weighed with `latent`."""
    return lambda cost: cost.payload_bytes * (latent if cost.kind == "all_gather" else 1)


def _twice(cost: CollectiveCost) -> float:
    """As arXiv 2607.17644 prints "sent": `reads.as_the_paper_counts`."""
    return cost.payload_bytes if cost.kind == "all_gather" else 2 * cost.wire_bytes


def _sum(result: Result, weigh: Weigh, phases: tuple[str, ...]) -> float:
    return sum(weigh(cost) for cost in result.communication.collectives if cost.phase in phases)
