"""What a row reads of a result: a field by its path, less others, or a figure of a name made from several."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from mla_cost.checks.evidence.source import Fields, PublishedRow
from mla_cost.language.machine import DTYPE_BYTES
from mla_cost.results import CollectiveCost, Result, TimePart


def read(row: PublishedRow, result: Result, plan: Fields) -> Any:
    """The figure that `row` names, None where the result has none. plan: the fields that the result answers."""
    if result.memory.allocated_peak_bytes is None:
        return None
    if row.read in NAMED:
        return NAMED[row.read](row, result, plan)
    found = _field(result, row.read)
    return found - sum(_field(result, path) for path in row.less) if row.less else found


def _field(result: Any, path: str) -> Any:
    """The field of a result by its path; a number stands for a place in a list, as in memory.stages.3.kept_bytes."""
    for name in path.split("."):
        result = (result[int(name)] if result else None) if name.isdigit() else getattr(result, name)
        if result is None:
            return None
    return result


def _saved(row: PublishedRow, result: Result, plan: Fields) -> float:
    """Elements per local token of the saved storages that the row names."""
    named = [tensor for tensor in result.memory.tensors if tensor.saved and tensor.name in row.tensors]
    return sum(tensor.bytes / DTYPE_BYTES[tensor.dtype] for tensor in named) / _tokens(plan)


def _gathered(row: PublishedRow, result: Result, plan: Fields) -> float:
    """Elements per local token that a rank hands to the gathers of forward: what a ring would pass on, hop by hop."""
    del row
    return sum(map(_elements, _gathers(result.communication.collectives))) / _tokens(plan)


def _gathers(costs: Iterable[CollectiveCost]) -> Iterable[CollectiveCost]:
    return (cost for cost in costs if (cost.kind, cost.phase) == ("all_gather", "forward"))


def _sent(row: PublishedRow, result: Result, plan: Fields) -> float:
    """Bytes of forward as arXiv 2607.17644 counts them: all-to-alls at 2(P-1)/P of their payload, the latent once."""
    del row, plan
    return as_the_paper_counts(result)


def as_the_paper_counts(result: Result) -> int:
    """Twice what an all-to-all puts on the wire, as if sent and received were added, and what gathers are handed."""
    costs = [cost for cost in result.communication.collectives if cost.phase == "forward"]
    twice = sum(2 * cost.wire_bytes for cost in costs if cost.kind == "all_to_all")
    return twice + sum(cost.payload_bytes for cost in costs if cost.kind == "all_gather")


def _elements(cost: CollectiveCost) -> float:
    return cost.payload_bytes / DTYPE_BYTES[cost.dtype]


def _tokens(plan: Fields) -> int:
    sizes: Mapping[str, Any] = plan
    return int(sizes["seq_len"]) // int(sizes["sp"]) * int(sizes["micro_batch"])


def _fits(row: PublishedRow, result: Result, plan: Fields) -> float:
    """1 where the device holds it, else 0."""
    del row, plan
    return float(result.verdict is not None and result.verdict.status in {"fits", "tight"})


def _passes(row: PublishedRow, result: Result, plan: Fields) -> float | None:
    """Seconds of a micro-batch forward and backward on the slowest stage, exchanges as far as they are exposed."""
    del row, plan
    return None if result.time is None else result.time.forward.seconds + result.time.backward.seconds


def _computing(row: PublishedRow, result: Result, plan: Fields) -> float | None:
    """Of those, what no exchange takes; one micro-batch."""
    del row, plan
    if result.time is None:
        return None
    return sum(part.seconds for part in result.time.parts if part.limit in {"compute", "memory"} and not _after(part))


def _exchanging(row: PublishedRow, result: Result, plan: Fields) -> float | None:
    """Exchanges between experts of one micro-batch, exposed and hidden."""
    del row, plan
    return None if result.time is None else result.time.exposed.get("ep", 0.0) + result.time.hidden.get("ep", 0.0)


def _after_passes(row: PublishedRow, result: Result, plan: Fields) -> float | None:
    """Seconds of a step after its passes: what keeps weights equal, and the optimizer."""
    del row, plan
    return None if result.time is None else sum(part.seconds for part in result.time.parts if _after(part))


def _after(part: TimePart) -> bool:
    return part.name == "optimizer" or part.name.startswith("keeping weights equal")


NAMED: Mapping[str, Callable[[PublishedRow, Result, Fields], Any]] = {
    "saved elements per token": _saved,
    "gathered elements per token": _gathered,
    "sent as the paper counts": _sent,
    "fits": _fits,
    "passes": _passes,
    "passes computing": _computing,
    "passes exchanging": _exchanging,
    "step after its passes": _after_passes,
}
