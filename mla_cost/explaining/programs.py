"""The program of a form or a layer as it runs: after its scheme, kernel, recomputation and profile."""

from __future__ import annotations

from mla_cost.errors import InputError
from mla_cost.language.program import ProgramError
from mla_cost.pricing.compile import listing
from mla_cost.pricing.key import Key
from mla_cost.results import ProgramLine, ProgramListing


def _shape(dims: tuple[str, ...], zeros: frozenset[str]) -> tuple[str, ...]:
    """The dims of a tensor; of a number one of size 1, of a tensor that is not there none."""
    return () if zeros & set(dims) else dims or ("1",)


def program(form: str, key: Key) -> ProgramListing:
    """The listing of a key. form: the name it was asked for by, which may be that of a pair.

    Raises:
        InputError: declarations that make no program together.

    """
    zeros = key.predicates.zeros
    try:
        found = listing(key)
    except ProgramError as error:
        raise InputError(str(error)) from None
    lines = [
        ProgramLine(line.depth, line.text, tuple(_shape(dims, zeros) for dims in line.dims), line.note)
        for line in found
    ]
    holds = key.predicates.words()
    return ProgramListing(form, key.scheme, key.kernel, key.profile, key.layer, key.remat, holds, tuple(lines))
