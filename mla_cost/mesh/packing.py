"""Documents on ranks: who holds which tokens, how much attention that is, and what has to travel. Exact, in tokens."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple

from mla_cost.language.numbers import ceil_divide


class Shard(NamedTuple):
    """Tokens [first, last) of a document on a rank."""

    document: int
    first: int
    last: int
    rank: int

    @property
    def tokens(self) -> int:
        """How many they are."""
        return self.last - self.first

    @property
    def work(self) -> int:
        """Pairs of a token and one at or before it in its document."""
        return (self.first + self.last + 1) * self.tokens // 2


class Spread(NamedTuple):
    """Documents dealt over ranks. lengths: with what they are filled up by; padding: tokens of that."""

    lengths: tuple[int, ...]
    ranks: int
    shards: tuple[Shard, ...]
    padding: int = 0

    @property
    def tokens(self) -> list[int]:
        """Tokens of each rank."""
        return self._sums([shard.tokens for shard in self.shards])

    @property
    def work(self) -> list[int]:
        """Pairs that each rank attends to under a causal mask that ends at documents."""
        return self._sums([shard.work for shard in self.shards])

    @property
    def balance(self) -> Fraction:
        """The busiest rank over the mean."""
        work = self.work
        return Fraction(max(work) * self.ranks, sum(work))

    def sent(self, reach: str) -> list[int]:
        """Tokens that each rank sends, once for each rank that gets them. reach: as in `declared.packing`."""
        if reach == "all":
            return [(self.ranks - 1) * max(self.tokens)] * self.ranks
        if reach == "not-last":
            inner = [shard.tokens * (shard.last != self.lengths[shard.document]) for shard in self.shards]
            return [(self.ranks - 1) * max(self._sums(inner))] * self.ranks
        return self._sums([self._read_elsewhere(shard) for shard in self.shards])

    def _read_elsewhere(self, shard: Shard) -> int:
        """Tokens of a shard, once for each other rank that has a later token of the document."""
        ends: dict[int, int] = {}
        for other in self.shards:
            if other.document == shard.document and other.rank != shard.rank:
                ends[other.rank] = max(other.last, ends.get(other.rank, 0))
        return sum(max(0, min(shard.last, end - 1) - shard.first) for end in ends.values())

    def _sums(self, amounts: Sequence[int]) -> list[int]:
        found = [0] * self.ranks
        for shard, amount in zip(self.shards, amounts, strict=True):
            found[shard.rank] += amount
        return found


def planned(lengths: Sequence[int], ranks: int, shards: Sequence[tuple[int, int, int, int]]) -> Spread:
    """Documents dealt as a plan says: document, first, last, rank."""
    return Spread(tuple(lengths), ranks, tuple(Shard(*each) for each in shards))


def deal(lengths: Sequence[int], ranks: int, how: str) -> Spread:
    """Documents dealt over ranks. how: as in `declared.packing`.

    Raises:
        ValueError: tokens of the pack that ranks do not divide.

    """
    if how == "per-document":
        return _per_document(lengths, ranks)
    if how == "per-document-uneven":
        return _unevenly(lengths, ranks)
    if how in {"contiguous", "zigzag"}:
        return _as_one(lengths, ranks, how == "zigzag")
    return _whole(lengths, ranks, equal=how == "equal")


def _per_document(lengths: Sequence[int], ranks: int) -> Spread:
    parts = 2 * ranks if ranks > 1 else 1
    filled = tuple(ceil_divide(length, parts) * parts for length in lengths)
    shards = []
    for document, length in enumerate(filled):
        chunk = length // parts
        shards += [
            Shard(document, part * chunk, (part + 1) * chunk, min(part, parts - 1 - part)) for part in range(parts)
        ]
    return Spread(filled, ranks, tuple(_joined(shards)), sum(filled) - sum(lengths))


def _unevenly(lengths: Sequence[int], ranks: int) -> Spread:
    """Every document in 2 P chunks that differ by a token at most: what is over goes to one chunk after another."""
    parts, turn, shards = 2 * ranks if ranks > 1 else 1, 0, []
    for document, length in enumerate(lengths):
        longer = {(turn + at) % parts for at in range(length % parts)}
        turn, at = (turn + length % parts) % parts, 0
        for part in range(parts):
            last = at + length // parts + (part in longer)
            shards += [Shard(document, at, last, min(part, parts - 1 - part))] * (last > at)
            at = last
    return Spread(tuple(lengths), ranks, tuple(_joined(shards)))


def _as_one(lengths: Sequence[int], ranks: int, zigzag: bool) -> Spread:
    parts, total = (2 * ranks if zigzag else ranks), sum(lengths)
    if total % parts:
        raise ValueError(f"{parts} chunks do not divide {total} tokens")
    chunk, shards, at = total // parts, [], 0
    for document, length in enumerate(lengths):
        first = 0
        while first < length:
            part = (at + first) // chunk
            last = min(length, (part + 1) * chunk - at)
            rank = min(part, parts - 1 - part) if zigzag else part
            shards.append(Shard(document, first, last, rank))
            first = last
        at += length
    return Spread(tuple(lengths), ranks, tuple(_joined(shards)))


def _joined(shards: Sequence[Shard]) -> list[Shard]:
    """Neighbours on one rank as one."""
    found: list[Shard] = []
    for shard in sorted(shards, key=lambda each: (each.document, each.first)):
        before = found[-1] if found else None
        if before and (before.document, before.rank, before.last) == (shard.document, shard.rank, shard.first):
            found[-1] = before._replace(last=shard.last)
        else:
            found.append(shard)
    return found


def _whole(lengths: Sequence[int], ranks: int, *, equal: bool) -> Spread:
    """The longest first to the rank with the fewest tokens; equal: heads of documents go on until all have as many."""
    held = [0] * ranks
    shards = []
    for document in sorted(range(len(lengths)), key=lambda each: -lengths[each]):
        rank = held.index(min(held))
        held[rank] += lengths[document]
        shards.append(Shard(document, 0, lengths[document], rank))
    if not equal:
        return Spread(tuple(lengths), ranks, tuple(sorted(shards)))
    if sum(lengths) % ranks:
        raise ValueError(f"{ranks} ranks do not divide {sum(lengths)} tokens")
    return Spread(tuple(lengths), ranks, tuple(sorted(_evened(shards, held, sum(lengths) // ranks))))


def _evened(shards: list[Shard], held: list[int], share: int) -> list[Shard]:
    """Heads of the longest shards go to ranks that have too little: a head is what travels, so a small one is cut."""
    while max(held) > share:
        over, under = held.index(max(held)), held.index(min(held))
        move = min(held[over] - share, share - held[under])
        longest = max((each for each in shards if each.rank == over), key=lambda each: each.tokens)
        move = min(move, longest.tokens)
        shards.remove(longest)
        shards.append(longest._replace(last=longest.first + move, rank=under))
        if longest.tokens > move:
            shards.append(longest._replace(first=longest.first + move))
        held[over] -= move
        held[under] += move
    return shards


def degree(length: int, limit: int, *, doubling: bool) -> int:
    """The ranks that a document needs so that none has more tokens than the limit."""
    found = 1
    while length > found * limit:
        found = found * 2 if doubling else found + 1
    return found


def by_micro_batch(sequences: int, ranks: int, length: int) -> tuple[int, int]:
    """BASP (arXiv 2609.03151): ranks of each of as many groups as sequences, and tokens of a rank.

    Raises:
        ValueError: groups that do not come out even.

    """
    if ranks % sequences:
        raise ValueError(f"{sequences} groups do not divide {ranks} ranks")
    group = ranks // sequences
    return group, length // group
