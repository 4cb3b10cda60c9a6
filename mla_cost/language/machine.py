"""An abstract torch: storages that live as long as something holds them, graph nodes, and the backward engine.

Rules run on it as torch code runs on torch. Lifetimes are Python's own: a `Storage` reports its end when the last
tensor that shares it is dropped, exactly where CPython would drop the real one (docs/decisions/0003). What comes out
is a timeline of allocations and frees in order, with polynomial sizes and no numbers.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable

from mla_cost.language.autograd import Edge, Gradients, Node, Recorder
from mla_cost.language.dims import Predicates
from mla_cost.language.polynomial import Polynomial
from mla_cost.language.strides import is_contiguous, is_dense, like
from mla_cost.language.tensors import Tensor
from mla_cost.language.timeline import (
    DTYPE_BYTES,
    PROGRAMS,
    Allocation,
    Collective,
    Event,
    FusedCall,
    PersistentBuffer,
    Phase,
    Timeline,
    once_per_timeline,
)

__all__ = [
    "DTYPE_BYTES",
    "PROGRAMS",
    "Allocation",
    "Collective",
    "Event",
    "FusedCall",
    "Gradients",
    "Machine",
    "PersistentBuffer",
    "Phase",
    "Tensor",
    "Timeline",
    "once_per_timeline",
]


class Machine(Recorder):
    """Runs rules and records what they allocate, save, move and compute; then runs back, as torch's engine does."""

    def __init__(self, predicates: Predicates, dtype: str) -> None:
        super().__init__(predicates, dtype)
        self._running: Node | None = None  # the node that goes back
        self._taken: list[Polynomial] = []  # what it had read before `returns`

    def returns(self) -> None:
        """The running node's call returns: what a checkpoint gave it goes, before its gradients are summed and cast.

        Torch does both in validate_outputs, when the saved tensors that were unpacked for the call are gone.
        """
        node = self._running
        if node is not None and node.region is not None:
            self._taken += map(self._through_memory, node.saved)
            node.saved.clear()

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
            self.op, self.place = node.op, node.place
            if node.backward is None:
                self._gather(node, gradients)
                continue
            self._restore(node)
            self.begins(node.kind)
            self._running = node
            results = list(node.backward(gradients))
            self.moved([*gradients, *node.saved, *self._taken])
            self._taken.clear()
            gradients.clear()
            node.saved.clear()
            self._running = None
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
        in_place = not parked.viewed and is_dense(self.predicates, parked.axes)
        result = self._allocate(
            f"sum of gradients of {self.op}", like(self.predicates, parked.axes), parked.dtype, in_place
        )
        self.runs("elementwise", [parked, parked], [result])
        self.reported()
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
        if not is_contiguous(self.predicates, gradient.axes):
            gradient = self.copied(gradient, f"gradient of {leaf.name}")
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
