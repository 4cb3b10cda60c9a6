"""Weights as one rank holds them: read off the dims that a program declares, and added up for a stage."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

from mla_cost.language.dims import EXPERT_PARTS, TP_PARTS
from mla_cost.language.numbers import round_up

Holder = Literal["dense", "expert"]


class Held(NamedTuple):
    """One weight on a rank, `part` saying where it belongs: `layer 3`, `mtp 0`, `ends`.

    elements: this rank's. matrix: whether it has two dims or more, none of them a vocabulary's. over_tp: whole on every
    rank of tp, of several. shared: another stage holds a copy. trained: an optimizer updates it.
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


class Flat(NamedTuple):
    """Weights of one dtype whose gradients are synchronised over the same ranks: they lie in one buffer.

    matrices: how many of the elements are those of matrices.
    """

    holder: Holder
    dtype: str
    elements: int
    matrices: int = 0


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


def placed(name: str, dims: Sequence[str], elements: int, dtype: str, tp: int) -> Held:
    """A weight as its dims place it: a part of the experts' goes over ep and etp, any other part over tp."""
    parts = {part for dim in dims for part in dim.split("+")}
    expert = not parts.isdisjoint(EXPERT_PARTS)
    whole = not expert and parts.isdisjoint(TP_PARTS)
    matrix = len(dims) > 1 and "V" not in parts
    return Held("", name, "expert" if expert else "dense", dtype, elements, matrix, whole and tp > 1)


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
        (count, Flat(held.holder, held.dtype, held.elements, held.elements * held.matrix)) for count, held in found
    )


def _joined(found: Iterable[tuple[int, Flat]]) -> tuple[Flat, ...]:
    """One for each holder and dtype, in a fixed order: sums that are equal are equal objects."""
    sums: dict[tuple[Holder, str], Flat] = {}
    for count, flat in found:
        before = sums.get(flat[:2], Flat(flat.holder, flat.dtype, 0))
        elements, matrices = before.elements + count * flat.elements, before.matrices + count * flat.matrices
        sums[flat[:2]] = before._replace(elements=elements, matrices=matrices)
    return tuple(sums[key] for key in sorted(sums) if sums[key].elements)
