"""A program evaluated at a point: one block, or a stack of equal blocks."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from mla_cost.declared.kernels import KERNELS
from mla_cost.language.dims import Predicates
from mla_cost.language.evaluate import EXACT_LIMIT, Evaluation, ExactLimitError, Walk, account_of
from mla_cost.language.fused_workspace import CALL
from mla_cost.language.machine import FusedCall
from mla_cost.language.numbers import maximum
from mla_cost.language.program import Kernel, ProgramError
from mla_cost.language.workspace import kinds_of
from mla_cost.pricing.compile import timeline
from mla_cost.pricing.key import Key
from mla_cost.pricing.resolve import Illegal, Point


class BlockFigures(NamedTuple):
    """The figures of `layers` equal blocks at a point, for one family's kernel workspace. All bytes, one rank.

    seen: as torch's dispatcher shows one block. allocated: as an allocator does, without the parameters.
    """

    point: Point
    at: Evaluation
    layers: int
    kinds: frozenset[str]
    seen: Walk
    allocated: Walk
    saved_bytes: int
    peak_bytes: int
    parameter_bytes: int
    gradient_bytes: int
    allocated_peak_bytes: int


def evaluation(point: Point) -> Evaluation:
    """The program of a point at its values.

    Raises:
        Illegal: no program exists, or a size leaves the range in which every evaluator is exact.

    """
    try:
        account = account_of(timeline(point.key))
        values = dict(point.values)
        for call in account.timeline.fused_calls:
            values["fused_workspace"] = fused_workspace(point.kernel, point.key.predicates, call, values)
        return Evaluation(account, values)
    except ProgramError as error:
        raise Illegal(f"{error}{_kernel_way_out(point)}") from None
    except ExactLimitError as error:
        raise too_large(error) from None


def _kernel_way_out(point: Point) -> str:
    others = [kernel.name for kernel in KERNELS.values() if kernel.shared_text is not None]
    return f"; kernels that take this form: {', '.join(others)}" if point.kernel.shared_text is None else ""


def too_large(error: ExactLimitError) -> Illegal:
    """The refusal of bytes that not every evaluator would give exactly."""
    return Illegal(f"{error}: bytes are exact below 2^53 only; make the plan smaller")


def fused_workspace(kernel: Kernel, predicates: Predicates, call: FusedCall, values: Mapping[str, Any]) -> Any:
    """What a fused kernel holds inside the backward of a call: bytes, a number or an array as the values are."""

    def dim(name: str) -> Any:
        return predicates.size(name).at(values)

    queries, batch, heads, qk = (dim(name) for name in call.query)
    key_heads = dim(call.key[2]) if len(call.key) == 4 else 1
    sizes = (batch, heads, key_heads, queries, dim(call.key[0]), qk, dim(call.value[-1]))
    return kernel.workspace.at(dict(zip(CALL, sizes, strict=True)))


def figures(point: Point, family: str, layers: int = 1) -> BlockFigures:
    """The figures of a stack of `layers` equal blocks.

    Raises:
        Illegal: as `evaluation`.

    """
    try:
        return _figures(point, evaluation(point), kinds_of(family), layers)
    except ExactLimitError as error:
        raise too_large(error) from None


def _figures(point: Point, at: Evaluation, kinds: frozenset[str], layers: int) -> BlockFigures:
    seen, allocated = at.walk(), at.walk_allocated(kinds)
    held, gradients = layers * at.parameter_bytes(), at.gradient_bytes()
    peak, allocated_peak = seen.peak.bytes, allocated.peak.bytes
    if layers > 1:
        inner = evaluation(_inner(point))
        others, kept = layers - 1, seen.after_forward - at.bytes_of(0)
        peak = stacked(_most(seen), inner.walk().peak.bytes, others, kept)
        last = inner.walk_allocated(kinds).peak.bytes
        allocated_peak = stacked(_most(allocated), last, others, kept, gradients)
    if max(held + allocated_peak, peak) >= EXACT_LIMIT:
        raise ExactLimitError(f"{layers} blocks")
    return BlockFigures(
        point=point,
        at=at,
        layers=layers,
        kinds=kinds,
        seen=seen,
        allocated=allocated,
        saved_bytes=layers * at.saved_bytes(),
        peak_bytes=peak,
        parameter_bytes=held,
        gradient_bytes=layers * gradients,
        allocated_peak_bytes=held + allocated_peak,
    )


@lru_cache(maxsize=4096)
def _inner_key(key: Key) -> Key:
    return key._replace(input_held=False)


def _inner(point: Point) -> Point:
    """A block whose input nobody else holds: every block of a stack but the first."""
    return point._replace(key=_inner_key(point.key))


def _most(walk: Walk) -> tuple[int, int]:
    return walk.forward.bytes, walk.backward.bytes


def stacked(
    first: tuple[Any, Any],
    inner: Any,
    others: Any,
    kept: Any,
    gradients: Any = 0,
) -> Any:
    """The peak of equal blocks in a row: numbers, or arrays of them.

    first: the most alive in forward and in backward of the block that holds its input. inner: the most of one that
    does not, `others` of which follow. kept: what a block adds to the pile in forward, its output (the next one's
    input) included. gradients: of one block's weights, where they count.

    Forward piles up what each block keeps; in backward the pile falls block by block while gradients of weights rise:
    linear, so an end is the largest. The ends are the last block and the first, which alone holds its input and so is
    at least the second.
    """
    forward, backward = first
    return maximum(maximum(forward, backward + others * gradients), others * kept + inner)
