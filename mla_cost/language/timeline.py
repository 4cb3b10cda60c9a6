"""What a run of a program leaves behind: allocations and frees in order, collectives, flops. Sizes are polynomials."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, Concatenate, Final, Literal, NamedTuple, ParamSpec, TypeVar

from mla_cost.language.polynomial import ONE, Polynomial

Further = ParamSpec("Further")
Made = TypeVar("Made")

PROGRAMS = 400  # that a process keeps, each with what is folded from it: about 250 KB a program

Phase = Literal["forward", "recompute", "backward"]
Kind = Literal["activation", "parameter", "parameter_gradient"]
# collectives in which a rank hands on what it sends: to its neighbour, or in pieces that each have a way of their own
PASSED_ON: Final = frozenset({"point_to_point", "cycles"})
DTYPE_BYTES = {"fp8": 1, "int8": 1, "bool": 1, "bf16": 2, "fp16": 2, "int16": 2, "fp32": 4, "int32": 4, "int64": 8}


class Allocation:
    """One storage over its whole life: what it is, how large, and (by event number) when it was made and freed."""

    __slots__ = (
        "dims",
        "dtype",
        "freed",
        "gathered",
        "kind",
        "label",
        "made",
        "number",
        "op",
        "phase",
        "place",
        "saved",
        "size",
    )

    def __init__(
        self,
        *,
        number: int,
        label: str,
        dims: tuple[str, ...],
        dtype: str,
        size: Polynomial,
        kind: Kind = "activation",
        phase: Phase = "forward",
        op: str = "",
        place: tuple[str, str] = ("", ""),
    ) -> None:
        self.number = number
        self.label = label
        self.dims = dims
        self.dtype = dtype
        self.size = size
        self.kind: Kind = kind
        self.phase: Phase = phase
        self.op = op
        self.place = place  # the piece and the op in it, whose forward or backward made it
        self.made = -1
        self.freed: int | None = None
        self.gathered = -1  # the event at which a weight's gradient is finished: added to a buffer, or kept as it is
        self.saved = False

    def alive_at(self, event: int) -> bool:
        """Whether the storage is alive right after an event."""
        return self.made <= event and (self.freed is None or self.freed > event)


class Event(NamedTuple):
    """A moment of the timeline. what: alloc, free, or work (memory that a kernel holds inside one call).

    merged: the allocation and free that torch's dispatcher shows where two gradients meet, and that real tensors do
    without, since they are added in place.
    """

    what: Literal["alloc", "free", "work"]
    allocation: Allocation | None
    phase: Phase
    op: str
    work: tuple[tuple[str, Polynomial], ...] = ()
    merged: bool = False


class Collective(NamedTuple):
    """One call of a collective. payload: bytes of the tensor handed over; wire: bytes this rank sends.

    axis: the mesh axis, whose number of ranks is `ranks`. handed: the dims of the tensor. piece: dims of what goes to
    each of the other ranks, so wire is (ranks - 1) pieces; an all-reduce sends each piece twice.
    """

    kind: str
    axis: str
    ranks: str
    tensor: str
    phase: Phase
    dtype: str
    handed: tuple[str, ...]
    piece: tuple[str, ...]
    payload: Polynomial
    wire: Polynomial


class OpFlops(NamedTuple):
    """Multiply-adds counted as two. needed: what the maths needs; recomputed: what a kernel repeats on top.

    attention: causality spares half of it in the model's own count. skips_masked: and in what the kernel runs.
    """

    op: str
    phase: Phase
    needed: Polynomial
    recomputed: Polynomial
    attention: bool = False
    skips_masked: bool = False


WorkClass = Literal[
    "gemm",
    "grouped_gemm",
    "attention",
    "elementwise",
    "norm",
    "softmax",
    "rope",
    "copy",
    "permutation",
    "loss",
    "collective",
]


class Product(NamedTuple):
    """The shape of a matrix product, or of fused attention: `batch` times m by k with k by n.

    batch: products of their own, each on m, n and k; of a grouped product the groups, among which m is the rows of
    all. Of attention: heads times sequences, query and key positions, and the widths of query and value together.
    """

    batch: Polynomial
    m: Polynomial
    n: Polynomial
    k: Polynomial


class KernelRun(NamedTuple):
    """One call on the device. reads, writes: what passes through its memory, each tensor once. Bytes.

    flops: as it runs them, of causal attention the full square; skips_masked: half of them under a causal mask.
    launches: kernels that one call starts. product: the shape of one that multiplies. of_weight: whether its
    result is a weight's gradient. collective: the number of the one that this call is.
    """

    op: str
    phase: Phase
    work: WorkClass
    reads: tuple[Polynomial, ...]
    writes: tuple[Polynomial, ...]
    launches: Polynomial = ONE
    dtype: str = ""
    product: Product | None = None
    flops: Polynomial | None = None
    skips_masked: bool = False
    of_weight: bool = False
    collective: int | None = None


class FusedCall(NamedTuple):
    """The dims that a fused attention kernel was called with."""

    query: tuple[str, ...]
    key: tuple[str, ...]
    value: tuple[str, ...]


class PersistentBuffer(NamedTuple):
    """Memory that is made once and stays for the whole run, shared by all uses of the same name and shape.

    outer, inner: dims of its rows and columns. each: every layer has its own.
    """

    name: str
    outer: tuple[str, ...]
    inner: tuple[str, ...]
    dtype: str
    each: bool = False


class Timeline:
    """Everything one run of a program leaves behind."""

    def __init__(self) -> None:
        self.allocations: list[Allocation] = []
        self.events: list[Event] = []
        self.collectives: list[Collective] = []
        self.flops: list[OpFlops] = []
        self.kernels: list[KernelRun] = []
        self.parameters: list[Allocation] = []
        self.fused_calls: list[FusedCall] = []
        self.persistent: list[PersistentBuffer] = []
        self.forward_events = 0
        self.folds: dict[tuple[Any, ...], Any] = {}  # what was made of it, once it is complete


def once_per_timeline(
    fold: Callable[Concatenate[Timeline, Further], Made],
) -> Callable[Concatenate[Timeline, Further], Made]:
    """Keep what a fold makes of a complete timeline with the timeline: it goes when that goes."""

    @wraps(fold)
    def kept(timeline: Timeline, /, *more: Further.args, **named: Further.kwargs) -> Made:
        asked = (fold, *more, *named.items())
        if asked not in timeline.folds:
            timeline.folds[asked] = fold(timeline, *more, **named)
        made: Made = timeline.folds[asked]
        return made

    return kept
