"""Packed documents: attention by document, balance of ranks, padding and what travels, by every way to deal them."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction
from typing import Any, Final, NamedTuple

from mla_cost.declared.packing import PACKINGS, Packing
from mla_cost.errors import InputError, nearest, shown
from mla_cost.inputs import catalog
from mla_cost.inputs.config import DeviceConfig, ModelConfig
from mla_cost.inputs.counts import counted
from mla_cost.inputs.settings import PlanSettings, is_stated
from mla_cost.inputs.yaml_files import SUFFIXES, load_mapping
from mla_cost.language.numbers import ceil_divide
from mla_cost.mesh.packing import Shard, deal, degree
from mla_cost.timing.ceilings import ceilings, has_ceilings
from mla_cost.timing.rules import attended

MOST: Final = 10_000  # documents
_DRAWN: Final = re.compile(r"lognormal:([^*@]+)\*(\d{1,5})@(\d{1,9})")
_BYTES: Final = 2
NODE: Final = 8  # devices of a node where no device is named
BACKWARD: Final = 2.5  # flops of a fused backward by those of its forward: docs/decisions/0005


class DocumentRow(NamedTuple):
    """One way to deal a pack over ranks. Tokens and bytes of the rank that has or sends most.

    balance: attention of the busiest rank over the mean. padding: tokens of all ranks. expanded_bytes, latent_bytes: of
    keys and values of all heads, or of latents, sent in forward. groups: ranks of each document where they differ.
    seconds: attention of the busiest rank, one layer forward and backward, where the device's ceilings are known.
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
    seconds: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {**self._asdict(), "balance": None if self.balance is None else float(self.balance)}


class Document(NamedTuple):
    """Documents of one length. flops: forward attention of one layer of one of them, causal; share: of all, per cent.

    seconds: forward and backward of it on one device, where its ceilings are known.
    """

    length: int
    documents: int
    flops: int
    share: float
    seconds: float | None


class Pack(NamedTuple):
    """The answer. flops: forward attention of one layer, causal, ending at documents; as_one_flops: as one sequence."""

    model: str
    lengths: tuple[int, ...]
    sp: int
    flops: int
    as_one_flops: int
    rows: tuple[DocumentRow, ...]
    by_length: tuple[Document, ...] = ()
    device: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "schema": "mla-cost/documents/1",
            **self._asdict(),
            "lengths": list(self.lengths),
            "rows": [row.to_dict() for row in self.rows],
            "by_length": [each._asdict() for each in self.by_length],
        }


def packed(settings: PlanSettings, text: str) -> tuple[PlanSettings, tuple[int, ...]]:
    """A plan whose sequence is a pack, and the lengths of its documents as `lengths_of` reads them.

    Raises:
        InputError: a length, or a seq_len that is stated and is not their sum.

    """
    lengths = lengths_of(text)
    if is_stated(settings, "seq_len") and settings.seq_len != sum(lengths):
        allowed = f"no seq_len, or {sum(lengths)}, what the documents come to"
        raise InputError("is not the length of the pack", field="seq_len", value=settings.seq_len, allowed=allowed)
    return settings.model_copy(update={"seq_len": sum(lengths)}), lengths


def of_plan(settings: PlanSettings, lengths: Sequence[int], sp: int) -> Pack:
    """The documents of a plan over sp ranks, on its first device, with a rank's share of heads."""
    device, node = settings.device[0] if settings.device else None, settings.devices_per_node
    return documents(lengths, model=settings.model, sp=sp, device=device, node=node, tp=settings.tp)


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
    device: str | None = None,
    node: int | None = None,
    tp: int = 1,
) -> Pack:
    """Every way to deal documents over ranks; those whose transfers are inferred only where they are asked for.

    limit: tokens of a rank, for ways that give each document as many ranks as it needs; else an even share. device:
    whose ceilings time stands on. node: devices of a node, else the device's. tp: ranks that divide heads.

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
    on = catalog.device(device) if device else None
    most, one = limit or ceil_divide(sum(given), sp), Attends(own, tp, on)
    nodes = node or (on.linked_devices if on else NODE)
    rows = tuple(_row(row, given, PackRanks(sp, most, nodes), one) for row in chosen)
    pairs = [length * (length + 1) // 2 for length in given]
    by_length = tuple(_of_length(length, given.count(length), one, sum(pairs)) for length in sorted({*given})[::-1])
    flops = one.each * sum(pairs), one.each * (sum(given) * (sum(given) + 1) // 2)
    return Pack(own.name, given, sp, *flops, rows, by_length, on.name if on else None)


class Attends:
    """Attention of one layer on one device: flops of a pair of tokens, and how long shards take."""

    def __init__(self, model: ModelConfig, tp: int, device: DeviceConfig | None) -> None:
        self.model = model
        self.each = 2 * (model.dims.heads // tp) * model.dims.kv_head_dim
        self._on = ceilings(device) if device and has_ceilings(device) else None

    def seconds(self, shards: Iterable[Shard], among: int = 1) -> float | None:
        """Forward and backward of shards of documents, over so many ranks: each attends to all before it."""
        if self._on is None:
            return None
        on = self._on
        work = [(self.each * shard.work / among, shard.last) for shard in shards]
        forward = sum(attended(on, flops, 0, keys, 1, False).seconds for flops, keys in work)
        return float(forward + sum(attended(on, BACKWARD * flops, 0, keys, 1, True).seconds for flops, keys in work))


def _of_length(length: int, count: int, one: Attends, pairs: int) -> Document:
    own = length * (length + 1) // 2
    return Document(length, count, one.each * own, 100 * count * own / pairs, one.seconds([Shard(0, 0, length, 0)]))


class PackRanks(NamedTuple):
    """sp: that share the pack; limit: tokens of one, where documents get ranks by length; node: devices of a node."""

    sp: int
    limit: int
    node: int


def _row(packing: Packing, lengths: tuple[int, ...], ranks: PackRanks, one: Attends) -> DocumentRow:
    if packing.degree != "fixed":
        return _by_groups(packing, lengths, ranks, one)
    inside = min(ranks.sp, ranks.node) if packing.nodes else 1
    if ranks.sp % inside:
        return _refused(packing, f"{inside} devices of a node do not divide {ranks.sp} ranks")
    try:
        spread = deal(lengths, ranks.sp // inside, packing.deal)
    except ValueError as error:
        return _refused(packing, f"{error}; pad the pack")
    sent = max(spread.sent(packing.reach))
    expanded, latent = (ceil_divide(amount, inside) for amount in _bytes(sent, one.model))
    busiest = max(range(spread.ranks), key=lambda rank: spread.work[rank])
    taken = one.seconds((shard for shard in spread.shards if shard.rank == busiest), inside)
    return DocumentRow(
        packing.name, ceil_divide(max(spread.tokens), inside), spread.balance, spread.padding, sent, expanded, latent,
        packing.basis, packing.source, seconds=taken,
    )  # fmt: skip


def _refused(packing: Packing, why: str) -> DocumentRow:
    return DocumentRow(packing.name, 0, None, 0, 0, 0, 0, packing.basis, packing.source, why=why)


def _by_groups(packing: Packing, lengths: tuple[int, ...], ranks: PackRanks, one: Attends) -> DocumentRow:
    """Each document in a group of its own. Groups are not laid out in time, so no balance is told."""
    sp = ranks.sp
    if packing.degree == "count":
        if len({*lengths}) > 1 or sp % len(lengths):
            return _refused(packing, f"{sp} ranks are not as many equal groups as documents of one length")
        groups = (sp // len(lengths),) * len(lengths)
    else:
        groups = tuple(
            min(sp, degree(length, ranks.limit, doubling=packing.degree == "doubling")) for length in lengths
        )
    shares = [ceil_divide(length, group) for length, group in zip(lengths, groups, strict=True)]
    sent = max((group - 1) * share for group, share in zip(groups, shares, strict=True))
    taken = [one.seconds([Shard(0, 0, each, 0)], group) for each, group in zip(lengths, groups, strict=True)]
    longest = max((each for each in taken if each is not None), default=None)
    return DocumentRow(
        packing.name, max(shares), None, 0, sent, *_bytes(sent, one.model), packing.basis, packing.source, groups,
        seconds=longest,
    )  # fmt: skip


def _bytes(tokens: int, model: ModelConfig) -> tuple[int, int]:
    """Bytes of so many tokens: keys and values of all heads, and latents with the rotated key."""
    dims = model.dims
    expanded = dims.heads * dims.kv_head_dim
    return tokens * expanded * _BYTES, tokens * (dims.kv_lora_rank + dims.qk_rope_head_dim) * _BYTES
