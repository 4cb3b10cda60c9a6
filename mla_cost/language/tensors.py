"""Tensors that live as long as something holds them, and the allocator that notes when they are made and freed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from typing import TYPE_CHECKING

from mla_cost.language.dims import Predicates
from mla_cost.language.polynomial import ZERO, Polynomial
from mla_cost.language.strides import Axes, contiguous, is_contiguous, like, names
from mla_cost.language.timeline import (
    DTYPE_BYTES,
    Allocation,
    Event,
    KernelRun,
    OpFlops,
    Phase,
    Product,
    Timeline,
    WorkClass,
)

if TYPE_CHECKING:
    from mla_cost.language.autograd import Edge


Dims = tuple[str, ...]


class Storage:
    """A handle on an allocation. Its end is the free event."""

    __slots__ = ("allocation", "machine")

    def __init__(self, machine: Allocator, allocation: Allocation) -> None:
        self.machine = machine
        self.allocation = allocation

    def __del__(self) -> None:
        self.machine.freed(self.allocation)


class Tensor:
    """A view of a storage: axes and dtype, and the graph node that made it."""

    __slots__ = ("axes", "dtype", "edge", "label", "storage", "viewed")

    def __init__(self, storage: Storage, axes: Axes, dtype: str, label: str, edge: Edge | None = None) -> None:
        self.storage = storage
        self.axes = axes
        self.dtype = dtype
        self.label = label
        self.edge = edge
        self.viewed = False  # made by a view: it holds the tensor that it was made from, as torch's views do

    @property
    def dims(self) -> tuple[str, ...]:
        """The dims, in order."""
        return names(self.axes)

    def is_absent(self, predicates: Predicates) -> bool:
        """Whether one of the dims has size zero."""
        return not predicates.zeros.isdisjoint(self.dims)

    def position(self, dim: str) -> int:
        """Where a dim stands."""
        return self.dims.index(dim)


@cache
def _constant(number: int) -> Polynomial:
    return Polynomial.constant(number)


class Allocator:
    """Makes tensors, and records what is allocated and computed."""

    def __init__(self, predicates: Predicates, dtype: str) -> None:
        self.predicates = predicates
        self.dtype = dtype
        self.timeline = Timeline()
        self.phase: Phase = "forward"
        self.op = ""
        self.place = ("", "")
        self.closed = False
        self.kind: WorkClass = "elementwise"  # of what an op runs without telling it
        self._made: list[Polynomial] = []  # by the op that runs
        self._reported = False

    def new(self, label: str, dims: Sequence[str], dtype: str | None = None) -> Tensor:
        """Allocate a contiguous tensor."""
        return self.new_as(label, contiguous(self.predicates, dims), dtype)

    def new_as(self, label: str, axes: Axes, dtype: str | None = None) -> Tensor:
        """Allocate a tensor with these dense axes."""
        return self._allocate(label, axes, dtype or self.dtype)

    def _allocate(self, label: str, axes: Axes, dtype: str, merged: bool = False) -> Tensor:
        dims, timeline = names(axes), self.timeline
        size = self.bytes_of(dims, dtype)
        self._made.append(size)
        allocation = Allocation(
            number=len(timeline.allocations),
            label=label,
            dims=dims,
            dtype=dtype,
            size=size,
            phase=self.phase,
            op=self.op,
            place=self.place,
        )
        allocation.made = len(timeline.events)
        timeline.allocations.append(allocation)
        timeline.events.append(Event("alloc", allocation, self.phase, self.op, merged=merged))
        return Tensor(Storage(self, allocation), axes, dtype, label)

    def bytes_of(self, dims: tuple[str, ...], dtype: str) -> Polynomial:
        """Bytes of a tensor with these dims."""
        return self.predicates.multiple(dims, DTYPE_BYTES[dtype])

    def freed(self, allocation: Allocation, merged: bool = False) -> None:
        """Record the end of a storage."""
        if self.closed or allocation.kind == "parameter":
            return
        allocation.freed = len(self.timeline.events)
        self.timeline.events.append(Event("free", allocation, self.phase, self.op, merged=merged))

    def copy(self, tensor: Tensor, label: str) -> Tensor:
        """A contiguous copy, without a graph node."""
        return self.new(label, tensor.dims, tensor.dtype)

    def written_into_zeros(self, label: str, dims: Sequence[str], dtype: str) -> Tensor:
        """Zeros that rows are added into where they lie; the dispatcher shows the result as a tensor of its own.

        Torch adds out of place wherever a dispatch mode looks on, and in place else: `gather_backward` and
        `index_backward`, torch/csrc/autograd/FunctionsManual.cpp and aten/src/ATen/native/TensorAdvancedIndexing.cpp,
        pytorch/pytorch.
        """
        zeros = self.new(f"zeros for {label}", dims, dtype)
        result = self._allocate(label, contiguous(self.predicates, dims), dtype, merged=True)
        allocation = zeros.storage.allocation
        del zeros
        if allocation.freed is not None:
            free = self.timeline.events[allocation.freed]
            self.timeline.events[allocation.freed] = free._replace(merged=True)
        self._made.pop()  # one tensor, which is written once
        return result

    def view(self, tensor: Tensor, axes: Axes) -> Tensor:
        """Another look at the same storage, without a graph node."""
        found = Tensor(tensor.storage, axes, tensor.dtype, tensor.label)
        found.viewed = True
        return found

    def elementwise(self, label: str, tensor: Tensor, dtype: str | None = None) -> Tensor:
        """A new tensor made elementwise from this one: dense, in its order of strides."""
        return self.new_as(label, like(self.predicates, tensor.axes), dtype or tensor.dtype)

    def work(self, **sizes: Polynomial) -> None:
        """Record memory that the running kernel may hold inside its call, by kind."""
        self.timeline.events.append(Event("work", None, self.phase, self.op, work=tuple(sizes.items())))

    def flops(
        self, needed: Polynomial, recomputed: Polynomial = ZERO, attention: bool = False, skips_masked: bool = False
    ) -> None:
        """Record the multiply-adds (counted as two) of the running op."""
        phase: Phase = self.phase
        if phase == "recompute":
            needed, recomputed, phase = ZERO, needed + recomputed, "backward"
        self.timeline.flops.append(OpFlops(self.op, phase, needed, recomputed, attention, skips_masked))

    # ---- what runs on the device

    def copied(self, tensor: Tensor, label: str) -> Tensor:
        """As `copy`, by a kernel of its own."""
        result = self.copy(tensor, label)
        self.runs("copy", [tensor], [result])
        return result

    def begins(self, kind: WorkClass) -> None:
        """An op starts: what it makes from here on is its own."""
        self.kind = kind
        self.reported()

    def reported(self, *, whole: bool = False) -> None:
        """What was made so far is accounted for. whole: and so is all that this op still makes."""
        self._made.clear()
        self._reported = whole

    def runs(
        self,
        work: WorkClass,
        reads: Iterable[Tensor | Polynomial | None],
        writes: Iterable[Tensor | Polynomial],
        *,
        launches: Polynomial | int = 1,
        dtype: str = "",
        product: Product | None = None,
        flops: Polynomial | None = None,
        skips_masked: bool = False,
        of_weight: bool = False,
        collective: int | None = None,
    ) -> None:
        """Record a call on the device. Tensors count once, each as large as it is where nothing expands it."""
        self.timeline.kernels.append(
            KernelRun(
                op=self.op,
                phase=self.phase,
                work=work,
                reads=tuple(self._through_memory(each) for each in reads if each is not None),
                writes=tuple(map(self._through_memory, writes)),
                launches=_constant(launches) if isinstance(launches, int) else launches,
                dtype=dtype or self.dtype,
                product=product,
                flops=flops,
                skips_masked=skips_masked,
                of_weight=of_weight,
                collective=collective,
            )
        )
        self.reported(whole=True)

    def _through_memory(self, what: Tensor | Polynomial) -> Polynomial:
        if isinstance(what, Polynomial):
            return what
        return self.bytes_of(tuple(axis.name for axis in what.axes if axis.stride is not None), what.dtype)

    def multiplies(
        self,
        rows: Dims,
        columns: Dims,
        inner: Dims,
        *,
        batch: Dims = (),
        dtype: str | None = None,
        into: str | None = None,
        work: WorkClass = "gemm",
        of_weight: bool = False,
    ) -> None:
        """Record the product [batch rows inner] x [batch inner columns], written once in the dtype `into`."""
        dtype = dtype or self.dtype
        count = self.predicates.elements
        self.runs(
            work,
            (self.bytes_of((*batch, *rows, *inner), dtype), self.bytes_of((*batch, *inner, *columns), dtype)),
            (self.bytes_of((*batch, *rows, *columns), into or dtype),),
            dtype=dtype,
            product=Product(count(batch), count(rows), count(columns), count(inner)),
            flops=self.predicates.multiple((*batch, *rows, *columns, *inner), 2),
            of_weight=of_weight,
        )

    def multiplies_back(
        self, rows: Dims, columns: Dims, inner: Dims, *, dtype: str | None = None, into: str | None = None
    ) -> None:
        """Record both products of a linear's backward: the input's gradient, and the weight's in the dtype `into`."""
        self.multiplies(rows, inner, columns, dtype=dtype)
        self.multiplies(columns, inner, rows, dtype=dtype, into=into, of_weight=True)

    def multiplies_rows(self, groups: Dims, rows: Dims, columns: Dims, inner: Dims, dtype: str, back: bool) -> None:
        """Record a product of rows by groups, each with its own weight [groups columns inner], or both of its backward.

        Its shape has the rows of all groups together.
        """
        count, size = self.predicates.elements, self.bytes_of
        inside, outside = size((*rows, *inner), dtype), size((*rows, *columns), dtype)
        weight, flops = size((*groups, *columns, *inner), dtype), self.predicates.multiple((*rows, *columns, *inner), 2)
        calls = (
            [
                (outside, weight, inside, (rows, inner, columns), False),
                (outside, inside, weight, (rows, inner, columns), True),
            ]
            if back
            else [(inside, weight, outside, (rows, columns, inner), False)]
        )
        for first, second, result, shape, of_weight in calls:
            m, n, k = map(count, shape)
            self.runs(
                "grouped_gemm",
                (first, second),
                (result,),
                dtype=dtype,
                product=Product(count(groups), m, n, k),
                flops=flops,
                of_weight=of_weight,
            )

    def moved(self, reads: Iterable[Tensor | Polynomial | None]) -> None:
        """Where the op has reported nothing: it reads its operands once, and writes what it made."""
        if self._made and not self._reported:
            self.runs(self.kind, [t for t in reads if t is not None], list(self._made))
        self.reported()

    def is_contiguous(self, tensor: Tensor) -> bool:
        """Whether the tensor lies row-major without gaps."""
        return is_contiguous(self.predicates, tensor.axes)
