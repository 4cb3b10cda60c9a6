"""An abstract torch: storages that live as long as something holds them, graph nodes, and the backward engine.

Rules run on it as torch code runs on torch. Lifetimes are Python's own: a `Storage` reports its end when the last
tensor that shares it is dropped, exactly where CPython would drop the real one (docs/decisions/0003). What comes out
is a timeline of allocations and frees in order, with polynomial sizes and no numbers.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Sequence
from typing import Literal, NamedTuple

from mla_cost.language.dims import Facts
from mla_cost.language.polynomial import ZERO, Polynomial
from mla_cost.language.strides import Axes, contiguous, is_contiguous, is_dense, like, names

PROGRAMS = 768  # that a process keeps, and of each thing folded from them: with these 150 KB a program (44 MB for 290)

Phase = Literal["forward", "recompute", "backward"]
Kind = Literal["activation", "parameter", "parameter_gradient"]
DTYPE_BYTES = {"int8": 1, "bool": 1, "bf16": 2, "fp16": 2, "fp32": 4, "int32": 4, "int64": 8}


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
    ) -> None:
        self.number = number
        self.label = label
        self.dims = dims
        self.dtype = dtype
        self.size = size
        self.kind: Kind = kind
        self.phase: Phase = phase
        self.op = op
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


class Flops(NamedTuple):
    """Multiply-adds counted as two. needed: what the maths needs; recomputed: what a kernel repeats on top.

    attention: causality spares half of it in the model's own count. skips_masked: and in what the kernel runs.
    """

    op: str
    phase: Phase
    needed: Polynomial
    recomputed: Polynomial
    attention: bool = False
    skips_masked: bool = False


class FusedCall(NamedTuple):
    """The dims that a fused attention kernel was called with."""

    query: tuple[str, ...]
    key: tuple[str, ...]
    value: tuple[str, ...]


class Standing(NamedTuple):
    """Memory that is made once and stays for the whole run, shared by all uses of the same name and shape.

    outer, inner: dims of its rows and columns.
    """

    name: str
    outer: tuple[str, ...]
    inner: tuple[str, ...]
    dtype: str


class Storage:
    """A handle on an allocation. Its end is the free event."""

    __slots__ = ("allocation", "machine")

    def __init__(self, machine: Machine, allocation: Allocation) -> None:
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

    def position(self, dim: str) -> int:
        """Where a dim stands."""
        return self.dims.index(dim)


Gradients = list["Tensor | None"]
Backward = Callable[[Gradients], Sequence["Tensor | None"]]


class Node:
    """A node of the backward graph. `backward` gets one gradient per output and gives one per edge."""

    __slots__ = ("backward", "edges", "late", "number", "op", "outputs", "region", "saved", "slot")

    def __init__(
        self,
        number: int,
        op: str,
        edges: Sequence[Edge | None],
        backward: Backward | None,
        saved: Sequence[Tensor],
        outputs: int,
    ) -> None:
        self.number = number
        self.op = op
        self.edges = tuple(edges)
        self.backward = backward
        self.saved: list[Tensor] = list(saved)
        self.outputs = outputs
        self.region: Region | None = None  # where a checkpoint keeps nothing: what runs again before this node runs
        self.slot = 0
        self.late: list[tuple[Region, int]] = []  # what it would keep, but a checkpoint without output makes again


Edge = tuple[Node, int]
Body = Callable[[list[Tensor]], list[Tensor]]


class Region:
    """A checkpoint: its inputs, and how to run it again. Nodes that would have kept something hold it until they ran.

    captured: what running again found for each of them, in order. Without output (`discards`) what it returned is not
    kept either: outputs holds it from running again until each of the `awaited` nodes that keep it has taken it. held:
    what a checkpoint that goes back by itself has in hand until the last of its `kept` nodes has run.
    """

    __slots__ = ("awaited", "body", "captured", "discards", "held", "inputs", "kept", "outputs", "ran", "reentrant")

    def __init__(self, body: Body, inputs: list[Tensor], discards: bool = False) -> None:
        self.discards = discards
        self.awaited = 0
        self.outputs: list[Tensor] | None = None
        self.body = body
        self.inputs = inputs
        self.kept = 0
        self.captured: list[list[Tensor]] | None = None
        self.reentrant = False
        self.held: list[Tensor] = []
        self.ran = 0


class _AllCaptured(Exception):  # noqa: N818  (no error: torch stops a recomputation so)
    """The last tensor that backward needs has been made again."""


LEAF_NUMBER = 1 << 62  # torch runs AccumulateGrad nodes as soon as they are ready


class Leaf:
    """A tensor that gathers its gradient: a parameter or the block's input. It does not hold the tensor itself."""

    __slots__ = ("gradient", "name", "parameter")

    def __init__(self, name: str, parameter: bool) -> None:
        self.name = name
        self.parameter = parameter
        self.gradient: Tensor | None = None


class Timeline:
    """Everything one run of a program leaves behind."""

    def __init__(self) -> None:
        self.allocations: list[Allocation] = []
        self.events: list[Event] = []
        self.collectives: list[Collective] = []
        self.flops: list[Flops] = []
        self.parameters: list[Allocation] = []
        self.fused_calls: list[FusedCall] = []
        self.standing: list[Standing] = []
        self.forward_events = 0


class Machine:
    """Runs rules and records what they allocate, save, move and compute."""

    def __init__(self, facts: Facts, dtype: str) -> None:
        self.facts = facts
        self.dtype = dtype
        self.timeline = Timeline()
        self.phase: Phase = "forward"
        self.op = ""
        self.closed = False
        self._region: Region | None = None
        self._capturing: Region | None = None
        self._discarded: dict[Allocation, tuple[Region, int]] = {}
        self._nodes = 0
        self._sizes: dict[tuple[tuple[str, ...], str], Polynomial] = {}
        self._leaves: dict[Node, Leaf] = {}

    # ---- tensors

    def new(self, label: str, dims: Sequence[str], dtype: str | None = None) -> Tensor:
        """Allocate a contiguous tensor."""
        return self.new_as(label, contiguous(self.facts, dims), dtype)

    def new_as(self, label: str, axes: Axes, dtype: str | None = None) -> Tensor:
        """Allocate a tensor with these dense axes."""
        return self._allocate(label, axes, dtype or self.dtype)

    def _allocate(self, label: str, axes: Axes, dtype: str, merged: bool = False) -> Tensor:
        dims, timeline = names(axes), self.timeline
        size = self.bytes_of(dims, dtype)
        allocation = Allocation(
            number=len(timeline.allocations),
            label=label,
            dims=dims,
            dtype=dtype,
            size=size,
            phase=self.phase,
            op=self.op,
        )
        allocation.made = len(timeline.events)
        timeline.allocations.append(allocation)
        timeline.events.append(Event("alloc", allocation, self.phase, self.op, merged=merged))
        return Tensor(Storage(self, allocation), axes, dtype, label)

    def bytes_of(self, dims: tuple[str, ...], dtype: str) -> Polynomial:
        """Bytes of a tensor with these dims."""
        known = self._sizes.get((dims, dtype))
        if known is None:
            known = self._sizes[dims, dtype] = self.facts.elements(dims) * DTYPE_BYTES[dtype]
        return known

    def freed(self, allocation: Allocation, merged: bool = False) -> None:
        """Record the end of a storage."""
        if self.closed or allocation.kind == "parameter":
            return
        allocation.freed = len(self.timeline.events)
        self.timeline.events.append(Event("free", allocation, self.phase, self.op, merged=merged))

    def copy(self, tensor: Tensor, label: str) -> Tensor:
        """A contiguous copy, without a graph node."""
        return self.new(label, tensor.dims, tensor.dtype)

    def view(self, tensor: Tensor, axes: Axes) -> Tensor:
        """Another look at the same storage, without a graph node."""
        found = Tensor(tensor.storage, axes, tensor.dtype, tensor.label)
        found.viewed = True
        return found

    def elementwise(self, label: str, tensor: Tensor, dtype: str | None = None) -> Tensor:
        """A new tensor made elementwise from this one: dense, in its order of strides."""
        return self.new_as(label, like(self.facts, tensor.axes), dtype or tensor.dtype)

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
        self.timeline.flops.append(Flops(self.op, phase, needed, recomputed, attention, skips_masked))

    def is_contiguous(self, tensor: Tensor) -> bool:
        """Whether the tensor lies row-major without gaps."""
        return is_contiguous(self.facts, tensor.axes)

    # ---- leaves and nodes

    def parameter(self, name: str, dims: Sequence[str]) -> Tensor:
        """A parameter: counted on its own, never in the timeline."""
        dims = tuple(self.facts.present(dim) for dim in dims)
        axes = contiguous(self.facts, dims)
        size = self.facts.elements(dims) * DTYPE_BYTES[self.dtype]
        allocation = Allocation(number=-1, label=name, dims=dims, dtype=self.dtype, size=size, kind="parameter")
        self.timeline.parameters.append(allocation)
        tensor = Tensor(Storage(self, allocation), axes, self.dtype, name)
        return self._leaf(name, tensor, parameter=True)

    def uncounted(self, label: str) -> Tensor:
        """A tensor that no figure counts: a scalar."""
        allocation = Allocation(number=-1, label=label, dims=(), dtype="fp32", size=ZERO, kind="parameter")
        return Tensor(Storage(self, allocation), (), "fp32", label)

    def input(self, name: str, dims: Sequence[str]) -> Tensor:
        """The block's input, whose gradient is wanted."""
        return self._leaf(name, self.new(name, dims), parameter=False)

    def _leaf(self, name: str, tensor: Tensor, parameter: bool) -> Tensor:
        node = Node(LEAF_NUMBER, f"gradient of {name}", (), None, (), 1)
        self._leaves[node] = Leaf(name, parameter)
        tensor.edge = (node, 0)
        return tensor

    def attach(
        self,
        outputs: Sequence[Tensor],
        inputs: Sequence[Tensor],
        backward: Backward,
        saved: Iterable[Tensor] = (),
    ) -> None:
        """Make the node that leads from outputs back to inputs, keeping `saved` until it has run."""
        kept = [Tensor(t.storage, t.axes, t.dtype, t.label) for t in saved]
        if self._capturing is not None:
            self._capture(self._capturing, kept)
            return
        self._nodes += 1
        node = Node(self._nodes, self.op, [t.edge for t in inputs], backward, (), len(outputs))
        if self._region is None:
            self._hold(node, kept)
        elif kept:
            node.region, node.slot = self._region, self._region.kept
            self._region.kept += 1
        for index, output in enumerate(outputs):
            output.edge = (node, index)

    # ---- checkpoints

    def inputs_kept(self, *tensors: Tensor) -> list[Tensor]:
        """What an op keeps of its inputs, to be asked before it allocates, and then given to `attach` as saved.

        Torch notes them before the op runs: running again stops there, and the last op's result is never made.
        """
        if self._capturing is None:
            return list(tensors)
        self._capture(self._capturing, [Tensor(t.storage, t.axes, t.dtype, t.label) for t in tensors])
        return []

    def checkpoint(
        self, body: Body, inputs: list[Tensor], discards: bool = False, reentrant: bool = False
    ) -> list[Tensor]:
        """Run a part of the program whose nodes keep nothing: backward runs it again (docs/decisions/0009).

        discards: nor does anything later keep what it returns, which is made again before it is needed. reentrant: it
        is run again to its end before any of it goes back, and what it returned and the gradients of that stay.
        """
        if self._region is not None or self._capturing is not None:
            return body(inputs)
        region = self._region = Region(body, list(inputs), discards)
        try:
            results = body(inputs)
        finally:
            self._region = None
        if discards:
            made = {tensor.storage.allocation: (region, at) for at, tensor in enumerate(results)}
            self._discarded.update(made)
        if reentrant and region.kept:
            region.reentrant = True
            results = [self._entered(region, results.pop(0)) for _ in range(len(results))]
        return results

    def _entered(self, region: Region, result: Tensor) -> Tensor:
        """A result whose gradient makes the region run again first, and is in its hand until it is done."""
        view = self.view(result, result.axes)

        def backward(gradients: Gradients) -> list[Tensor | None]:
            gradient = gradients[0]
            assert gradient is not None
            if region.captured is None:
                self._run_again(region)
            region.held.append(gradient)
            return [self.view(gradient, gradient.axes)]

        self.attach([view], [result], backward)
        return view

    def _hold(self, node: Node, kept: list[Tensor]) -> None:
        """Keep these, but for what a checkpoint without output makes again."""
        for tensor in kept:
            made = self._discarded.get(tensor.storage.allocation)
            if made is None:
                node.saved.append(tensor)
            else:
                node.late.append(made)
                made[0].awaited += 1

    def remade(self, tensor: Tensor, source: Tensor) -> Tensor:
        """The tensor; where `source` was discarded, it is made again as soon as this one's gradient is there."""
        made = self._discarded.get(source.storage.allocation)
        if made is None or self._region is not None or self._capturing is not None:
            return tensor
        view, region = self.view(tensor, tensor.axes), made[0]

        def backward(gradients: Gradients) -> list[Tensor | None]:
            self._remake(region)
            return [gradients[0]]

        self.attach([view], [tensor], backward)
        return view

    def _remake(self, region: Region) -> None:
        if region.outputs is None and region.awaited:
            self._run_again(region)

    @staticmethod
    def _capture(region: Region, kept: list[Tensor]) -> None:
        if not kept:
            return
        assert region.captured is not None
        region.captured.append(kept)
        if len(region.captured) == region.kept and not region.discards and not region.reentrant:
            raise _AllCaptured

    def _restore(self, node: Node) -> None:
        """Give a node of a checkpoint what it would have kept, running the part again where nobody has yet."""
        while node.late:
            self._take(node, *node.late.pop())
        region = node.region
        if region is None:
            return
        if region.captured is None:
            self._run_again(region)
        assert region.captured is not None
        node.saved, region.captured[node.slot] = region.captured[node.slot], []

    def _take(self, node: Node, region: Region, at: int) -> None:
        """Keep what a checkpoint without output makes again; the last to take it leaves nothing behind."""
        self._remake(region)
        assert region.outputs is not None
        node.saved.append(region.outputs[at])
        region.awaited -= 1
        if not region.awaited:
            region.outputs = None

    @staticmethod
    def _leave(node: Node) -> None:
        """The node has run: with the last of a checkpoint's, what that had in hand goes."""
        region, node.region = node.region, None
        if region is not None:
            region.ran += 1
            if region.ran == region.kept:
                region.held.clear()

    def _run_again(self, region: Region) -> None:
        op, region.captured = self.op, []
        self._capturing, self.phase = region, "recompute"
        try:
            results = region.body(list(region.inputs))
            region.outputs = results if region.discards else None
            region.held += results if region.reentrant else []
            del results
        except _AllCaptured as stop:
            stop.__traceback__ = None
        self._capturing, self.phase, self.op = None, "backward", op

    # ---- backward

    def mark_saved(self, edge: Edge) -> None:
        """Mark every storage that a node reachable from here keeps."""
        for node in _reachable(edge[0]):
            for tensor in node.saved if node.region is None else node.region.inputs:
                tensor.storage.allocation.saved = True

    def backward(self, edge: Edge, make_gradient: Callable[[], Tensor]) -> None:
        """Run the graph: the node made last first, leaves as soon as they are ready, as torch's engine does."""
        self.phase = "backward"
        self._discarded.clear()  # only nodes hold a checkpoint from here on, each until it has run
        waiting = _dependencies(edge[0])
        buffers: dict[Node, Gradients] = {}
        queue: list[tuple[int, int, Node]] = []
        self.op = "output"
        self._hand(edge, make_gradient(), buffers, waiting, queue)
        del edge
        while queue:
            node = heapq.heappop(queue)[2]
            gradients = buffers.pop(node)
            self.op = node.op
            if node.backward is None:
                self._gather(node, gradients)
                continue
            self._restore(node)
            results = list(node.backward(gradients))
            gradients.clear()
            node.saved.clear()
            self._leave(node)
            for target in node.edges:
                result = results.pop(0)
                if target is not None:
                    self._hand(target, result, buffers, waiting, queue)
                del result
            node.edges = ()
            node.backward = None

    def _hand(
        self,
        edge: Edge,
        gradient: Tensor | None,
        buffers: dict[Node, Gradients],
        waiting: dict[Node, int],
        queue: list[tuple[int, int, Node]],
    ) -> None:
        node, index = edge
        slots = buffers.setdefault(node, [None] * node.outputs)
        if gradient is not None:
            slots[index] = gradient if slots[index] is None else self._add(slots, index)
        waiting[node] -= 1
        if waiting[node] <= 0:
            heapq.heappush(queue, (-node.number, len(queue), node))

    def _add(self, slots: Gradients, index: int) -> Tensor:
        """Two gradients meet. The dispatcher shows a new tensor; real tensors are added in place where they may be.

        They may where the first is no view: a view shares its storage with the tensor it was made from, which it
        holds. Source: torch/csrc/autograd/input_buffer.cpp, can_accumulate_inplace, pytorch/pytorch.
        """
        parked = slots[index]
        assert parked is not None
        in_place = not parked.viewed and is_dense(self.facts, parked.axes)
        result = self._allocate(f"sum of gradients of {self.op}", like(self.facts, parked.axes), parked.dtype, in_place)
        slots[index] = None
        allocation = parked.storage.allocation
        del parked
        if in_place and allocation.freed is not None:
            free = self.timeline.events[allocation.freed]
            self.timeline.events[allocation.freed] = Event("free", allocation, free.phase, free.op, merged=True)
        elif in_place:  # somebody else still holds the first gradient, so it may not be overwritten
            made = result.storage.allocation.made
            event = self.timeline.events[made]
            self.timeline.events[made] = Event("alloc", event.allocation, event.phase, event.op)
        return result

    def _gather(self, node: Node, gradients: Gradients) -> None:
        """Keep a leaf's gradient: taken as it is where its layout is the leaf's, copied otherwise."""
        leaf = self._leaves[node]
        gradient = gradients.pop()
        assert gradient is not None
        if not is_contiguous(self.facts, gradient.axes):
            gradient = self.copy(gradient, f"gradient of {leaf.name}")
        allocation = gradient.storage.allocation
        allocation.label = f"gradient of {leaf.name}"
        if leaf.parameter:
            allocation.kind = "parameter_gradient"
            allocation.gathered = len(self.timeline.events)
        leaf.gradient = gradient


def _reachable(root: Node) -> list[Node]:
    seen: dict[Node, None] = {}
    stack = [root]
    while stack:
        node = stack.pop()
        if node not in seen:
            seen[node] = None
            stack.extend(edge[0] for edge in node.edges if edge is not None)
    return list(seen)


def _dependencies(root: Node) -> dict[Node, int]:
    """How many gradients each node waits for; the root waits for the one it is handed."""
    waiting: dict[Node, int] = {root: 1}
    for node in _reachable(root):
        for edge in node.edges:
            if edge is not None:
                waiting[edge[0]] = waiting.get(edge[0], 0) + 1
    return waiting
