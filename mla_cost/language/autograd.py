"""The backward graph: nodes, what they keep, and checkpoints that keep nothing and run again."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from mla_cost.language.dims import Predicates
from mla_cost.language.polynomial import ZERO
from mla_cost.language.strides import contiguous
from mla_cost.language.tensors import Allocator, Storage, Tensor
from mla_cost.language.timeline import DTYPE_BYTES, Allocation, WorkClass

Gradients = list["Tensor | None"]
Backward = Callable[[Gradients], Sequence["Tensor | None"]]


class Node:
    """A node of the backward graph. `backward` gets one gradient per output and gives one per edge."""

    __slots__ = ("backward", "edges", "kind", "late", "number", "op", "outputs", "place", "region", "saved", "slot")

    def __init__(
        self,
        number: int,
        op: str,
        edges: Sequence[Edge | None],
        backward: Backward | None,
        saved: Sequence[Tensor],
        outputs: int,
    ) -> None:
        self.kind: WorkClass = "elementwise"  # of what it runs without telling it
        self.number = number
        self.op = op
        self.place = ("", "")
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
    what a checkpoint that goes back by itself has in hand until the last of its `kept` nodes has run. late: inputs, by
    their place, that another checkpoint discards and makes again.
    """

    __slots__ = (
        *("awaited", "body", "captured", "discards", "held", "inputs", "kept", "late", "outputs", "ran", "reentrant"),
    )

    def __init__(self, body: Body, inputs: list[Tensor], discards: bool = False) -> None:
        self.discards = discards
        self.awaited = 0
        self.outputs: list[Tensor] | None = None
        self.body = body
        self.inputs = inputs
        self.late: list[tuple[int, Region, int]] = []
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


class Recorder(Allocator):
    """Runs rules forward, and notes how to go back."""

    def __init__(self, predicates: Predicates, dtype: str) -> None:
        super().__init__(predicates, dtype)
        self._region: Region | None = None
        self._capturing: Region | None = None
        self._discarded: dict[Allocation, tuple[Region, int]] = {}
        self._nodes = 0
        self._leaves: dict[Node, Leaf] = {}

    # ---- leaves and nodes

    def parameter(self, name: str, dims: Sequence[str], dtype: str | None = None) -> Tensor:
        """A parameter: counted on its own, never in the timeline. dtype: its own, where the program states one."""
        dtype = dtype or self.dtype
        dims = tuple(self.predicates.present(dim) for dim in dims)
        axes = contiguous(self.predicates, dims)
        size = self.predicates.multiple(dims, DTYPE_BYTES[dtype])
        allocation = Allocation(number=-1, label=name, dims=dims, dtype=dtype, size=size, kind="parameter")
        self.timeline.parameters.append(allocation)
        tensor = Tensor(Storage(self, allocation), axes, dtype, name)
        return self._leaf(name, tensor, parameter=True)

    def uncounted(self, label: str) -> Tensor:
        """A tensor that no figure counts: a scalar."""
        allocation = Allocation(number=-1, label=label, dims=(), dtype="fp32", size=ZERO, kind="parameter")
        return Tensor(Storage(self, allocation), (), "fp32", label)

    def absent(self, label: str, dims: Sequence[str]) -> Tensor:
        """A tensor of which a dim is absent, so that it has no elements."""
        allocation = Allocation(number=-1, label=label, dims=tuple(dims), dtype=self.dtype, size=ZERO, kind="parameter")
        return Tensor(Storage(self, allocation), contiguous(self.predicates, dims), self.dtype, label)

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
        self.moved(inputs)
        if self._capturing is not None:
            self._capture(self._capturing, kept)
            return
        self._nodes += 1
        node = Node(self._nodes, self.op, [t.edge for t in inputs], backward, (), len(outputs))
        node.kind, node.place = self.kind, self.place
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
        self._await_inputs(region)
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

    def _await_inputs(self, region: Region) -> None:
        """Of what it would keep as an argument, what a checkpoint without output makes again is not kept.

        Megatron-Core frees the storage itself and fills it again, whoever refers to it (CheckpointWithoutOutput,
        megatron/core/tensor_parallel/random.py:744-790, NVIDIA/Megatron-LM@d98e8a64).
        """
        for place, tensor in enumerate(region.inputs):
            made = self._discarded.get(tensor.storage.allocation)
            if made is not None:
                region.late.append((place, *made))
                made[0].awaited += 1
                region.inputs[place] = self.uncounted("made again")

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
        """Keep what a checkpoint without output makes again."""
        node.saved.append(self._made_again(region, at))

    def _made_again(self, region: Region, at: int) -> Tensor:
        """What a checkpoint without output makes again; the last to take it leaves nothing behind."""
        self._remake(region)
        assert region.outputs is not None
        found = region.outputs[at]
        region.awaited -= 1
        if not region.awaited:
            region.outputs = None
        return found

    @staticmethod
    def _leave(node: Node) -> None:
        """The node has run: with the last of a checkpoint's, what that had in hand goes."""
        region, node.region = node.region, None
        if region is not None:
            region.ran += 1
            if region.ran == region.kept:
                region.held.clear()

    def _run_again(self, region: Region) -> None:
        while region.late:
            place, source, at = region.late.pop()
            region.inputs[place] = self._made_again(source, at)
        op, kind, text, region.captured = self.op, self.kind, self.place, []
        self._capturing, self.phase = region, "recompute"
        try:
            results = region.body(list(region.inputs))
            region.outputs = results if region.discards else None
            region.held += results if region.reentrant else []
            del results
        except _AllCaptured as stop:
            stop.__traceback__ = None
        self._capturing, self.phase, self.op, self.place = None, "backward", op, text
        self.begins(kind)
