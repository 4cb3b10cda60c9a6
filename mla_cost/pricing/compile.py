"""Runs a program once per structural key and folds what it left behind into polynomials."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from mla_cost.declared.forms import FORMS
from mla_cost.declared.kernels import KERNELS
from mla_cost.declared.profiles import PROFILES
from mla_cost.declared.schemes import SCHEMES
from mla_cost.language import recompute
from mla_cost.language.dims import predicates
from mla_cost.language.machine import PROGRAMS, Allocation, Timeline
from mla_cost.language.polynomial import Polynomial, total
from mla_cost.pricing.key import Key
from mla_cost.pricing.run import ATTENTION, Line, ProgramRun

EXPERTS: Final = "experts"  # the piece of every layer that has any
RANK_EXPERTS: Final = "c"
EXPERT_AXES: Final = frozenset({"E", "T"})  # the ranks that share the experts, and each of them


@lru_cache(maxsize=PROGRAMS)
def timeline(key: Key) -> Timeline:
    """Forward and backward of one block, compiled once per key; keys whose programs are the same share it."""
    same = reduced(key)
    return ProgramRun(key).timeline(backward=True) if same == key else timeline(same)


@lru_cache(maxsize=8 * PROGRAMS)
def reduced(key: Key) -> Key:
    """The key of the same program without what its text never comes to.

    Layers without attention have no form and no kernel, layers without experts nobody to share them with, and a policy
    that wraps no piece of a layer drops nothing. How many experts a rank has is a size of weights alone, but for an
    implementation that sorts the rows of several.
    """
    run = ProgramRun(key)
    reached = run.reached()
    wrapped = reached if run.layer.recomputed else frozenset()
    policy = [name for name in key.remat.split("+") if wrapped & (recompute.pieces(name) | recompute.discarded(name))]
    found = key._replace(remat="+".join(policy) or "none")
    known = key.predicates
    sorts = EXPERTS in reached and bool(PROFILES[key.profile].texts)
    ones = known.ones - (frozenset() if sorts else {RANK_EXPERTS}) | (
        frozenset() if EXPERTS in reached else EXPERT_AXES
    )
    found = found._replace(
        predicates=predicates(ones, known.zeros, known.heads_divided, known.rows_divided, known.nested)
    )
    if ATTENTION in reached:
        return found
    form, scheme, kernel = (next(iter(known)) for known in (FORMS, SCHEMES, KERNELS))
    return found._replace(form=form, scheme=scheme, kernel=kernel, names="rebound")


@lru_cache(maxsize=8 * PROGRAMS)
def saved(key: Key) -> Polynomial:
    """Bytes kept between forward and backward: forward alone, which is less to compile."""
    run = ProgramRun(key).timeline(backward=False)
    return total(allocation.size for allocation in run.allocations if allocation.saved)


@lru_cache(maxsize=8 * PROGRAMS)
def weights(key: Key) -> tuple[Allocation, ...]:
    """The weights that a program uses, each once, in the order in which it comes to them."""
    return tuple(ProgramRun(key).timeline(backward=False).parameters)


def listing(key: Key) -> tuple[Line, ...]:
    """The forward program of a key as it runs: conditions decided, moves, kernel and policy in their places."""
    run = ProgramRun(key)
    run.lines = []
    run.timeline(backward=False)
    return tuple(run.lines)
