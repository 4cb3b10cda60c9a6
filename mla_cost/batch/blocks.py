"""One block, or a stack of equal blocks, at many points: saved, sent, held and its peaks, as rows of one matrix."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple

from mla_cost.batch.matrices import Floats
from mla_cost.batch.programs import Kinds, ProgramRows, Programs, TapePeak, compiled_account, held, program, sums
from mla_cost.language import evaluate
from mla_cost.language.evaluate import Account
from mla_cost.language.machine import PROGRAMS
from mla_cost.language.polynomial import Polynomial
from mla_cost.pricing.block import stacked
from mla_cost.pricing.key import Key

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
    figures += [_kept(account), evaluate.gradients(run)]
    peaks = [TapePeak(seen, apart=True), TapePeak(account.seen)]
    for kinds in asked.kinds:
        peaks += [TapePeak(allocated, kinds, apart=True), TapePeak(account.allocated, kinds)]
    return program(asked, account, figures, peaks)


def _kept(account: Account) -> Polynomial:
    """What a block adds to the pile: all that is alive after forward but its input, which nobody else holds."""
    tape = held(account.seen, account)
    after: Polynomial = evaluate.course(account, tape, account.polynomials, frozenset()).after_forward
    return after - account.timeline.allocations[0].size


def block(
    asked: BlockAsked, programs: Programs, always: Mapping[str, float], values: dict[str, Any], size: int
) -> Block:
    """Blocks at points whose symbols have these values, `layers` among them; `always` are those of every point."""
    found, most = programs.at(compiled(asked), always, values, size)
    figures, peaks = list(found), most
    if asked.stacked:
        layers = values["layers"]
        *figures, kept, gradients = found
        parts = zip(*[iter(most)] * 3, strict=True)  # of the first block forward and backward, of an inner one
        peaks = [
            stacked((forward, backward), inner, layers - 1, kept, gradients if allocated else 0)
            for allocated, (forward, backward, inner) in enumerate(parts)  # after what a dispatcher sees
        ]
        figures = [figure * layers for figure in figures]
    return Block(figures, peaks[0], [each + figures[-1] for each in peaks[1:]])
