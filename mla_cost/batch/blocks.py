"""One block, or a stack of equal blocks, at many points: saved, sent, held and its peaks, as rows of one matrix."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple

from mla_cost.batch.array_layers import ArrayLayer, most
from mla_cost.batch.matrices import Floats
from mla_cost.batch.programs import Kinds, ProgramRows, Programs, TapePeak, compiled_account, held, program, sums
from mla_cost.language import evaluate
from mla_cost.language.evaluate import Tape
from mla_cost.language.machine import PROGRAMS
from mla_cost.pricing.block import ALONE
from mla_cost.pricing.key import Key
from mla_cost.pricing.stage import chunk_parts

FIGURES: Final = (
    *("saved_bytes", "forward_payload_bytes", "backward_payload_bytes", "forward_wire_bytes", "backward_wire_bytes"),
    "parameter_bytes",
)


class BlockAsked(NamedTuple):
    """What blocks are compiled for. kinds: the kernel workspace that counts, for each family. stacked: two or more."""

    key: Key
    kinds: tuple[Kinds, ...]
    stacked: bool


class Block(NamedTuple):
    """Blocks at many points. Bytes in double precision, valid until this thread asks for the next.

    figures: those of FIGURES. peak: as a dispatcher sees it. allocated: as an allocator does, with parameters, for each
    of the kinds asked for.
    """

    figures: Sequence[Floats]
    peak: Floats
    allocated: list[Floats]


@lru_cache(maxsize=PROGRAMS)
def compiled(asked: BlockAsked) -> ProgramRows:
    """The rows of a block: FIGURES, in a stack what a block adds to the pile and gradients; then the peaks.

    Raises:
        ProgramError: the kernel has no program for this form.

    """
    account = compiled_account(asked.key)
    run = account.timeline
    sent = [*sums(run, evaluate.payload).values(), *sums(run, evaluate.wire).values()]
    figures = [evaluate.saved(run), *sent, evaluate.parameters(run)]
    seen, allocated = held(account.seen, account), held(account.allocated, account)
    if not asked.stacked:
        return program(
            asked, account, figures, [TapePeak(seen), *(TapePeak(allocated, kinds) for kinds in asked.kinds)]
        )
    figures.append(evaluate.gradients(run))
    looks: list[tuple[Tape, Tape, Kinds]] = [(seen, account.seen, frozenset())]
    looks += [(allocated, account.allocated, kinds) for kinds in asked.kinds]
    peaks = [TapePeak(tape, kinds, apart=True) for *tapes, kinds in looks for tape in tapes]
    return program(asked, account, figures, peaks)


def block(
    asked: BlockAsked, programs: Programs, always: Mapping[str, float], values: dict[str, Any], size: int
) -> Block:
    """Blocks at points whose symbols have these values, `layers` among them; `always` are those of every point."""
    found, largest = programs.at(compiled(asked), always, values, size)
    if not asked.stacked:
        figures, peaks = list(found), largest
    else:
        *figures, gradients = found
        peaks = list(_in_a_row(figures[FIGURES.index("saved_bytes")], gradients, largest, values["layers"]))
        figures = [figure * values["layers"] for figure in figures]
    return Block(figures, peaks[0], [each + figures[-1] for each in peaks[1:]])


def _in_a_row(saved: Floats, gradients: Floats, largest: Sequence[Floats], layers: Any) -> Iterator[Floats]:
    """Peaks of blocks in a row. largest: of the first and of an inner one, forward and backward, for each look."""
    for number, (one, two, three, four) in enumerate(zip(*[iter(largest)] * 4, strict=True)):
        first = ArrayLayer(saved, one, two, gradients)
        others = ArrayLayer(saved, three, four, gradients, num_layers=layers - 1)
        blocks: Any = [first, others]  # they add up only
        _, ahead, back = chunk_parts(ALONE, blocks, gradients_stay=number > 0)  # after what a dispatcher sees
        yield most((*ahead, *back))
