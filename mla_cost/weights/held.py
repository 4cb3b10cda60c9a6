"""Weights as one rank holds them: read off the dims that a program declares, and added up for a stage."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from math import prod
from typing import Literal, NamedTuple

from mla_cost.language.dims import EXPERT_PARTS, HEADS, TP_PARTS
from mla_cost.language.numbers import round_up

Holder = Literal["dense", "expert"]


class WeightPiece(NamedTuple):
    """A weight that is split by itself: its elements, those of its first dim, and of the second of an expert's.

    matrix: as `Held`.
    """

    elements: int
    rows: int
    inner: int = 0
    matrix: bool = False

    def padded(self, ranks: int) -> int:
        """Elements that `ranks` hold together: the first dim padded to a multiple of them.

        Of experts fewer than ranks the second dim is split instead (pytorch/torchtitan models/llama4/infra/
        parallelize.py, apply_fsdp), which torch asks to be a multiple.
        """
        along = self.inner if self.inner and ranks > self.rows else self.rows
        return self.elements // along * round_up(along, ranks)

    def rearranged(self, ranks: int) -> bool:
        """Whether what is gathered is copied once more, into the order of another dim than the first."""
        return bool(self.inner) and ranks > self.rows


class Held(NamedTuple):
    """One weight on a rank, `part` saying where it belongs: `layer 3`, `mtp 0`, `ends`.

    elements: this rank's. matrix: whether it has two dims or more, none of them a vocabulary's. over_tp: whole on every
    rank of tp, of several. shared: another stage holds a copy. trained: an optimizer updates it. rows: the size of its
    first dim. inner: of the second, of an expert's.
    """

    part: str
    name: str
    holder: Holder
    dtype: str
    elements: int
    matrix: bool = False
    over_tp: bool = False
    shared: bool = False
    trained: bool = True
    rows: int = 1
    inner: int = 0

    @property
    def piece(self) -> WeightPiece:
        """What decides how it is split by itself."""
        return WeightPiece(self.elements, self.rows, self.inner, self.matrix)


class Flat(NamedTuple):
    """Weights of one dtype whose gradients are synchronised over the same ranks: they lie in one buffer.

    matrices: how many of the elements are those of matrices. pieces: its weights, and how many there are of each.
    """

    holder: Holder
    dtype: str
    elements: int
    matrices: int = 0
    pieces: tuple[tuple[WeightPiece, int], ...] = ()


class RankParameters(NamedTuple):
    """Elements that one rank of a stage holds.

    trained: dense weights are synchronised over dp x sp, experts over expert_dp. tp_summed: dense elements whole on
    every rank of tp, whose gradients megatron_sp leaves partial. shared: copies of an embedding that another stage
    holds too. untrained: what no optimizer updates.
    """

    trained: tuple[Flat, ...] = ()
    tp_summed: int = 0
    shared: int = 0
    untrained: tuple[Flat, ...] = ()

    @property
    def dense(self) -> int:
        """Trained elements that are no expert's."""
        return _elements(self.trained, "dense")

    @property
    def expert(self) -> int:
        """Trained elements of experts."""
        return _elements(self.trained, "expert")

    @property
    def elements(self) -> int:
        """Trained elements."""
        return self.dense + self.expert

    @property
    def buffers(self) -> int:
        """Elements that no optimizer updates."""
        return sum(flat.elements for flat in self.untrained)

    def only(self, holder: Holder) -> RankParameters:
        """The part of one holder; all that is not trained counts as dense."""
        own = tuple(flat for flat in self.trained if flat.holder == holder)
        return RankParameters(own) if holder == "expert" else self._replace(trained=own)


def placed(name: str, dims: Sequence[str], elements: int, dtype: str, tp: int, sizes: Sequence[int] = (1,)) -> Held:
    """A weight as its dims place it: a part of the experts' goes over ep and etp, any other part over tp.

    sizes: of its dims. Heads and their width, where they come first, are one dim of the matrix that is kept.
    """
    parts = {part for dim in dims for part in dim.split("+")}
    expert = not parts.isdisjoint(EXPERT_PARTS)
    whole = not expert and parts.isdisjoint(TP_PARTS)
    matrix = len(dims) > 1 and "V" not in parts
    inner = sizes[1] if expert and len(sizes) > 1 else 0
    holder: Holder = "expert" if expert else "dense"
    return Held(
        "",
        name,
        holder,
        dtype,
        elements,
        matrix,
        whole and tp > 1,
        rows=prod(sizes[: 1 + (dims[0] in HEADS)]),
        inner=inner,
    )


def rank_parameters(found: Iterable[tuple[int, Held]]) -> RankParameters:
    """The sum of weights, each so many times."""
    every = list(found)
    trained = [(count, held) for count, held in every if held.trained]
    return RankParameters(
        trained=_flats(trained),
        tp_summed=sum(count * held.elements for count, held in trained if held.over_tp),
        shared=sum(count * held.elements for count, held in trained if held.shared),
        untrained=_flats((count, held) for count, held in every if not held.trained),
    )


def total(parts: Iterable[tuple[int, RankParameters]]) -> RankParameters:
    """The sum of what parts of a stage hold, each so many times."""
    every = list(parts)
    return RankParameters(
        trained=_joined((count, flat) for count, part in every for flat in part.trained),
        tp_summed=sum(count * part.tp_summed for count, part in every),
        shared=sum(count * part.shared for count, part in every),
        untrained=_joined((count, flat) for count, part in every for flat in part.untrained),
    )


def padded_vocabulary(vocab: int, tp: int, multiple: int = 128) -> int:
    """Tokens after padding to a multiple of `multiple` x tp (Megatron's --make-vocab-size-divisible-by)."""
    return round_up(vocab, multiple * tp)


def _elements(flats: Iterable[Flat], holder: Holder) -> int:
    return sum(flat.elements for flat in flats if flat.holder == holder)


def _flats(found: Iterable[tuple[int, Held]]) -> tuple[Flat, ...]:
    return _joined(
        (count, Flat(held.holder, held.dtype, held.elements, held.elements * held.matrix, ((held.piece, 1),)))
        for count, held in found
    )


def _joined(found: Iterable[tuple[int, Flat]]) -> tuple[Flat, ...]:
    """One for each holder and dtype, in a fixed order: sums that are equal are equal objects."""
    sums: dict[tuple[Holder, str], Flat] = {}
    pieces: dict[tuple[Holder, str], Counter[WeightPiece]] = {}
    for count, flat in found:
        before = sums.get(flat[:2], Flat(flat.holder, flat.dtype, 0))
        elements, matrices = before.elements + count * flat.elements, before.matrices + count * flat.matrices
        sums[flat[:2]] = before._replace(elements=elements, matrices=matrices)
        of_dtype = pieces.setdefault(flat[:2], Counter())
        for piece, times in flat.pieces:
            of_dtype[piece] += count * times
    return tuple(
        sums[key]._replace(pieces=tuple(sorted(pieces[key].items()))) for key in sorted(sums) if sums[key].elements
    )
