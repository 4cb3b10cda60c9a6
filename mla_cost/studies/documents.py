"""Packed documents: attention by document, balance of ranks, padding and what travels, by every way to deal them."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import Any, Final, NamedTuple

from mla_cost.declared.packing import PACKINGS, Packing
from mla_cost.errors import InputError, nearest, shown
from mla_cost.inputs import catalog
from mla_cost.inputs.config import ModelConfig
from mla_cost.inputs.counts import counted
from mla_cost.inputs.yaml_files import SUFFIXES, load_mapping
from mla_cost.language.numbers import ceil_divide
from mla_cost.mesh.packing import deal, degree

MOST: Final = 10_000  # documents
_DRAWN: Final = re.compile(r"lognormal:([^*@]+)\*(\d{1,5})@(\d{1,9})")
_BYTES: Final = 2


class DocumentRow(NamedTuple):
    """One way to deal a pack over ranks. Tokens and bytes of the rank that has or sends most.

    work: attention of the busiest rank over the mean. padding: tokens of all ranks. expanded_bytes, latent_bytes: of
    keys and values of all heads, or of latents, sent in forward. groups: ranks of each document where they differ.
    """

    name: str
    tokens: int
    balance: Fraction | None
    padding: int
    sent_tokens: int
    expanded_bytes: int
    latent_bytes: int
    basis: str
    source: str
    groups: tuple[int, ...] = ()
    why: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {**self._asdict(), "balance": None if self.balance is None else float(self.balance)}


class Pack(NamedTuple):
    """The answer. flops: forward attention of one layer, causal, ending at documents; as_one_flops: as one sequence."""

    model: str
    lengths: tuple[int, ...]
    sp: int
    flops: int
    as_one_flops: int
    rows: tuple[DocumentRow, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "schema": "mla-cost/documents/1",
            **self._asdict(),
            "lengths": list(self.lengths),
            "rows": [row.to_dict() for row in self.rows],
        }


def lengths_of(text: str) -> tuple[int, ...]:
    """Lengths as people write them: `32k,16k,8k*2`, a file of `length: count`, or `lognormal:MEDIAN*COUNT@SEED`.

    Raises:
        InputError: what is none of these, or too many.

    """
    if text.endswith(SUFFIXES):
        found = [
            length for given, count in load_mapping(text).items() for length in [_length(str(given))] * _times(count)
        ]
    elif match := _DRAWN.fullmatch(text.strip()):
        found = list(_drawn(_length(match[1]), int(match[2]), int(match[3])))
    else:
        found = [length for part in text.split(",") for length in _repeated(part)]
    if not 1 <= len(found) <= MOST:
        raise InputError(f"{len(found)} documents", field="documents", allowed=f"1 to {MOST}")
    return tuple(found)


def _repeated(part: str) -> list[int]:
    length, times, count = part.partition("*")
    return [_length(length)] * (_times(count) if times else 1)


def _length(text: str) -> int:
    return tokens("documents", text)


def tokens(field: str, text: str) -> int:
    """A number of tokens as people write it.

    Raises:
        InputError: what is none.

    """
    found = counted(text)
    if found is None or not 1 <= found <= 2**30:
        raise InputError(
            "is no length",
            field=field,
            value=text,
            allowed="tokens such as 8192, 8k or 8k*4, separated by commas",
        )
    return found


def _times(count: Any) -> int:
    found = counted(str(count))
    if found is None or not 1 <= found <= MOST:
        raise InputError("is no number of documents", field="documents", value=count, allowed=f"1 to {MOST}")
    return found


def _drawn(median: int, count: int, seed: int) -> Iterator[int]:
    """Lengths from a lognormal distribution with sigma 1: the same for a seed everywhere."""
    draw = random.Random(seed)  # noqa: S311  (documents, no secret)
    for _ in range(count):
        yield max(1, round(draw.lognormvariate(math.log(median), 1.0)))


def documents(
    lengths: str | Sequence[int],
    *,
    model: str = "deepseek-v3",
    sp: int = 8,
    limit: int | None = None,
    ways: Sequence[str] = (),
    inferred: bool = False,
) -> Pack:
    """Every way to deal documents over ranks; those whose transfers are inferred only where they are asked for.

    limit: tokens of a rank, for ways that give each document as many ranks as it needs; else an even share.

    Raises:
        InputError: a length, way or degree that is none.

    """
    given = lengths_of(lengths) if isinstance(lengths, str) else tuple(lengths)
    if not 1 <= sp <= 2**16:
        raise InputError("must be a number of ranks", field="sp", value=sp, allowed="1 to 65536")
    for way in ways:
        if way not in PACKINGS:
            near = nearest(way, PACKINGS)
            raise InputError(f"unknown way {shown(way)}", field="way", allowed=", ".join(PACKINGS), nearest=near)
    own = catalog.model(model)
    chosen = [
        row for row in PACKINGS.values() if row.name in ways or (not ways and (inferred or row.basis != "inferred"))
    ]
    most = limit or ceil_divide(sum(given), sp)
    rows = tuple(_row(row, given, sp, most, own) for row in chosen)
    pairs = sum(length * (length + 1) // 2 for length in given)
    whole = sum(given) * (sum(given) + 1) // 2
    dims = own.dims
    each = 2 * dims.heads * dims.kv_head_dim
    return Pack(own.name, given, sp, each * pairs, each * whole, rows)


def _row(packing: Packing, lengths: tuple[int, ...], sp: int, limit: int, model: ModelConfig) -> DocumentRow:
    if packing.degree != "fixed":
        return _by_length(packing, lengths, sp, limit, model)
    try:
        spread = deal(lengths, sp, packing.deal)
    except ValueError as error:
        return DocumentRow(
            packing.name, 0, None, 0, 0, 0, 0, packing.basis, packing.source, why=f"{error}; pad the pack"
        )
    sent = max(spread.sent(packing.reach))
    return DocumentRow(
        packing.name, max(spread.tokens), spread.balance, spread.padding, sent, *_bytes(sent, model), packing.basis,
        packing.source,
    )  # fmt: skip


def _by_length(packing: Packing, lengths: tuple[int, ...], sp: int, limit: int, model: ModelConfig) -> DocumentRow:
    """Each document in a group of its own. Groups are not laid out in time, so no balance is told."""
    groups = tuple(min(sp, degree(length, limit, doubling=packing.degree == "doubling")) for length in lengths)
    shares = [ceil_divide(length, group) for length, group in zip(lengths, groups, strict=True)]
    sent = max((group - 1) * share for group, share in zip(groups, shares, strict=True))
    return DocumentRow(
        packing.name, max(shares), None, 0, sent, *_bytes(sent, model), packing.basis, packing.source, groups
    )


def _bytes(tokens: int, model: ModelConfig) -> tuple[int, int]:
    """Bytes of so many tokens: keys and values of all heads, and latents with the rotated key."""
    dims = model.dims
    expanded = dims.heads * dims.kv_head_dim
    return tokens * expanded * _BYTES, tokens * (dims.kv_lora_rank + dims.qk_rope_head_dim) * _BYTES
