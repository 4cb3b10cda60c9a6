"""What forward sends, counted three ways: what ranks hand over, what a network carries, and what is printed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from mla_cost.checks.evidence.reads import as_the_paper_counts
from mla_cost.checks.evidence.rows import price
from mla_cost.checks.evidence.source import Fields, PublishedRow, Source

READ = "sent as the paper counts"


class PublishedSent(NamedTuple):
    """Bytes of one rank in forward at a published cell, or of two forms the ratios. published: as printed."""

    row: str
    published: float
    unit: str
    printed_way: float
    payload: float
    wire: float


def sent(sources: Iterable[Source]) -> Iterator[PublishedSent]:
    """Every row that the paper's own count is read for."""
    for source in sources:
        yield from (_sent(source, row) for row in source.rows if row.read == READ)


def _sent(source: Source, row: PublishedRow) -> PublishedSent:
    assert isinstance(row.published, float)
    ours = _ways(source, row, row.of)
    if not row.against:
        return PublishedSent(row.id, row.published, row.unit, *ours)
    theirs = _ways(source, row, row.against)
    return PublishedSent(
        row.id, row.published, row.unit, *(one / other for one, other in zip(ours, theirs, strict=True))
    )


def _ways(source: Source, row: PublishedRow, side: Fields) -> tuple[int, int, int]:
    result = price({**source.plan(row), **side})
    forward = result.communication.forward
    assert forward.payload_bytes is not None
    assert forward.wire_bytes is not None
    return as_the_paper_counts(result), forward.payload_bytes, forward.wire_bytes
