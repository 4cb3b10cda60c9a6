"""Measure what a torch callable keeps, allocates and frees, as torch's dispatcher sees it.

`record` runs a callable forward and backward inside the surround of docs/decisions/0001-the-reference-style.md and
returns a `Recording`: the storages saved for backward, every allocation and free in order, the peak and what is
alive then, and the collectives called. It works on real tensors and, stacked over `FakeTensorMode`, on fake ones.

All figures are bytes of whole *storages*: a view adds nothing, and a small view pins all of its storage.
What a kernel allocates inside one call is invisible here; `mla_cost.checks.reference.allocator` sees it.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import groupby, pairwise
from typing import Any, Literal

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from mla_cost.checks.reference.remat import is_recomputing

Phase = Literal["forward", "backward"]
Kind = Literal["alloc", "free"]
Role = Literal["input", "intermediate", "parameter_gradient"]

# c10d op -> (the field's name, which positional argument is the tensor the rank hands over, and the tensor received)
COLLECTIVES = {
    "alltoall_base_": ("all_to_all", 1, 0),
    "_allgather_base_": ("all_gather", 1, 0),
    "_reduce_scatter_base_": ("reduce_scatter", 1, 0),
    "allreduce_": ("all_reduce", 0, 0),
    "send": ("point_to_point", 0, 0),
}
RECEIVED = "recv_"  # the other end of a send hands nothing over
AXES = ("sp", "tp", "ep", "etp", "pp")


@dataclass(frozen=True)
class RecordedStorage:
    """One storage that lived during the recording. `serial` is unique in a recording: torch reuses storage ids."""

    serial: int
    bytes: int
    op: str  # the op that returned it first, or "input"
    phase: Phase
    shape: tuple[int, ...]  # of the first tensor that was seen on it
    dtype: str
    role: Role = "intermediate"

    def __str__(self) -> str:
        return f"{self.op} {list(self.shape)} {self.dtype} {self.bytes:,} B"


@dataclass(frozen=True)
class RecordedEvent:
    """One allocation or free. A free carries the op that was the last to start when the storage died."""

    kind: Kind
    bytes: int
    op: str
    phase: Phase
    storage: int
    role: Role
    live_bytes: int  # after the event, without parameter gradients
    live_bytes_with_parameter_gradients: int

    @property
    def signed_bytes(self) -> int:
        return self.bytes if self.kind == "alloc" else -self.bytes


@dataclass(frozen=True)
class RecordedPeak:
    """The first moment at which the live bytes are largest, and the storages alive then."""

    bytes: int
    op: str
    phase: Phase
    event: int  # index into Recording.events; -1 where nothing was ever alive
    alive: tuple[RecordedStorage, ...]


@dataclass(frozen=True)
class RecordedCollective:
    """One collective as called: bytes of the tensor handed over and of the tensor received.

    phase  "recompute" where a part of `mla_cost.checks.reference.remat` runs again; storages and events say
           "backward" there.
    """

    kind: str
    payload_bytes: int
    received_bytes: int
    group_size: int
    phase: Phase | Literal["recompute"]
    shape: tuple[int, ...]
    dtype: str
    axis: str = ""  # the group's description where it has one: "sp", "tp", "ep", "etp" or "pp"


@dataclass(frozen=True)
class Recording:
    """What one forward and backward did. Parameters, tables and scalars are nowhere in it."""

    saved: tuple[RecordedStorage, ...]  # distinct storages packed for backward in forward, in that order
    kept: tuple[RecordedStorage, ...]  # alive when the caller had dropped the output, whatever holds them
    events: tuple[RecordedEvent, ...]
    storages: tuple[RecordedStorage, ...]
    peak: RecordedPeak
    peak_with_parameter_gradients: RecordedPeak
    collectives: tuple[RecordedCollective, ...]
    alive_at_end: tuple[RecordedStorage, ...]
    by_construction: bool = False  # a stand-in stated what it saves: agreement with it proves nothing

    @property
    def saved_bytes(self) -> int:
        return sum(storage.bytes for storage in self.saved)

    @property
    def peak_bytes(self) -> int:
        """Maximum of live bytes with input, output and their gradients, without parameters' gradients and tables."""
        return self.peak.bytes

    @property
    def parameter_gradient_bytes(self) -> int:
        return sum(storage.bytes for storage in self.storages if storage.role == "parameter_gradient")

    def timeline(self, phase: Phase | None = None, *, parameter_gradients: bool = True) -> list[int]:
        """Signed bytes of the events in order: +n allocated, -n freed.

        Frees with no allocation between them come largest first: the order in which one node lets go of its saved
        tensors differs between C++ and Python functions and shows in no figure. `events` has the order observed.
        """
        sizes = [
            event.signed_bytes
            for event in self.events
            if phase in (None, event.phase) and (parameter_gradients or event.role != "parameter_gradient")
        ]
        runs = groupby(sizes, key=lambda size: size < 0)
        return [size for freed, run in runs for size in (sorted(run) if freed else run)]


@dataclass(frozen=True)
class StepRecording:
    """One of several steps. peak_bytes: most alive within it. kept: storages alive after it."""

    peak_bytes: int
    kept: tuple[RecordedStorage, ...]


@dataclass
class _Log:
    """What the recorders write while the callable runs. It holds ints and weak references, never a tensor."""

    storages: list[RecordedStorage] = field(default_factory=list)
    events: list[tuple[Kind, int, str, Phase]] = field(default_factory=list)  # kind, serial, op, phase
    collectives: list[RecordedCollective] = field(default_factory=list)
    packed: dict[int, None] = field(default_factory=dict)  # serials in first-packed order
    live: dict[int, int] = field(default_factory=dict)  # storage address -> serial, while it lives
    references: dict[int, weakref.ref[torch.UntypedStorage]] = field(default_factory=dict)
    excluded: set[int] = field(default_factory=set)  # addresses; their owners outlive the recording
    op: str = "input"
    recording: bool = True

    def phase(self) -> Phase:
        # -1 outside of the autograd engine: needs no cooperation from the callable, checkpoints included.
        return "forward" if torch._C._current_graph_task_id() == -1 else "backward"

    def exclude(self, tensors: Iterable[torch.Tensor]) -> None:
        self.excluded.update(tensor.untyped_storage()._cdata for tensor in tensors)

    def see(self, tensor: torch.Tensor, role: Role = "intermediate") -> int | None:
        """Serial of the tensor's storage, logged as allocated if it is new; None where it is not to be counted."""
        storage = tensor.untyped_storage()
        address = storage._cdata
        if address in self.excluded or storage.nbytes() == 0 or _is_scalar(tensor):
            return None
        if address not in self.live:
            self._allocate(storage, tensor, role)
        return self.live[address]

    def pack(self, tensor: torch.Tensor) -> None:
        address = tensor.untyped_storage()._cdata
        if address in self.live:
            self.packed[self.live[address]] = None
        elif address not in self.excluded and not _is_scalar(tensor):  # it would be missing from every figure
            raise ValueError(f"a saved tensor of shape {list(tensor.shape)} is no input, parameter or table")

    def _allocate(self, storage: torch.UntypedStorage, tensor: torch.Tensor, role: Role) -> None:
        serial, phase, address = len(self.storages), self.phase(), storage._cdata
        shape, dtype = tuple(tensor.shape), str(tensor.dtype).removeprefix("torch.")
        self.storages.append(RecordedStorage(serial, storage.nbytes(), self.op, phase, shape, dtype, role))
        self.events.append(("alloc", serial, self.op, phase))
        self.live[address] = serial
        self.references[serial] = weakref.ref(storage, lambda _: self._free(address, serial))

    def _free(self, address: int, serial: int) -> None:
        del self.live[address], self.references[serial]
        if self.recording:
            self.events.append(("free", serial, self.op, self.phase()))


class RecordedTimeline(TorchDispatchMode):
    """Dispatch mode that logs each new storage an op returns, its death, and every collective."""

    def __init__(self, log: _Log) -> None:
        super().__init__()
        self.log = log

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func.namespace != "prim":  # reading an attribute (prim::device) is not an op
            self.log.op = func._schema.name.split("::")[-1]
        if func.namespace == "c10d" and self.log.op != RECEIVED:
            self._collective(func, args)
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor):
                self.log.see(leaf)
        return result

    def _collective(self, func: Any, args: tuple[Any, ...]) -> None:
        if self.log.op not in COLLECTIVES:
            raise NotImplementedError(f"collective {func} is not one the recorder knows: {', '.join(COLLECTIVES)}")
        kind, handed, received = COLLECTIVES[self.log.op]
        send, out = tree_leaves(args[handed])[0], tree_leaves(args[received])[0]
        boxed = next(arg for arg in args if isinstance(arg, torch.ScriptObject) and _is_group(arg))
        group = torch.distributed.ProcessGroup.unbox(boxed)
        self.log.collectives.append(
            RecordedCollective(
                kind,
                send.numel() * send.element_size(),
                out.numel() * out.element_size(),
                group.size(),
                "recompute" if is_recomputing() else self.log.phase(),
                tuple(send.shape),
                str(send.dtype).removeprefix("torch."),
                group.group_desc if group.group_desc in AXES else "",
            )
        )


def _is_scalar(tensor: torch.Tensor) -> bool:
    """Whether it is one number, as a loss is, and no element of anything larger."""
    return tensor.dim() == 0 and tensor.untyped_storage().nbytes() == tensor.element_size()


def _is_group(script_object: torch.ScriptObject) -> bool:
    return "ProcessGroup" in str(script_object._type())


class Tail(torch.autograd.Function):
    """The rest of the network: keeps nothing, returns a scalar, and in backward allocates the gradient it hands over.

    Arguments: a scalar made beforehand (so that it is not an allocation of the measured run), then the outputs.
    """

    @staticmethod
    def forward(ctx: Any, scalar: torch.Tensor, *outputs: torch.Tensor) -> torch.Tensor:
        ctx.like = [(output.shape, output.dtype, output.device) for output in outputs]
        return scalar.view_as(scalar)

    @staticmethod
    def backward(ctx: Any, *_: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        gradients = (
            torch.ones(shape, dtype=dtype, device=device) if needed else None
            for (shape, dtype, device), needed in zip(ctx.like, ctx.needs_input_grad[1:], strict=True)
        )
        return None, *gradients


def record(
    function: Callable[..., Any],
    inputs: Sequence[torch.Tensor],
    *,
    parameters: Iterable[torch.Tensor] = (),
    tables: Iterable[torch.Tensor] = (),
    holds: bool = False,
) -> Recording:
    """Run `function(*inputs)` forward and backward and return what was kept, allocated, freed and exchanged.

    function    returns a tensor or a (nested) tuple of tensors; a single scalar is the loss itself and gets no tail.
                An `nn.Module` brings its own parameters and buffers (buffers are tables) in addition to those given.
    inputs      held by the caller throughout, hence counted from the first event on, as are their gradients.
    parameters  left out; storages that end as their `.grad` have the role `parameter_gradient`. `.grad` must be None.
    tables      left out, like parameters, and have no gradient.

    holds       whether the caller keeps the outputs and their gradients until backward is over.

    An output that needs no gradient gets none; with no output that needs one there is no backward phase.
    """
    parameters, tables = list(parameters), list(tables)
    if isinstance(function, torch.nn.Module):
        parameters += list(function.parameters())
        tables += list(function.buffers())
    held = [tensor for tensor in (*inputs, *parameters) if tensor.grad is not None]
    if held:
        raise ValueError(f"{len(held)} inputs or parameters already have a gradient: set .grad to None first")
    log = _Log()
    scalar, seed = (torch.zeros((), device=_device(inputs)) for _ in range(2))
    log.exclude([*parameters, *tables, scalar, seed])
    kept = _run(function, inputs, log, scalar, seed, [] if holds else None)
    return _recording(log, kept, parameters)


def record_steps(
    steps: Iterable[Callable[[], Any]], *, parameters: Iterable[torch.Tensor] = (), tables: Iterable[torch.Tensor] = ()
) -> tuple[Recording, tuple[StepRecording, ...]]:
    """Run `steps` one after the other, each with its own passes, and return all of them together and each of them.

    parameters, tables: as for `record`. A gradient that a step takes from its parameter is an intermediate.
    """
    log = _Log()
    marks: list[tuple[int, list[int]]] = [(0, [])]
    log.exclude([*parameters, *tables])
    with _recorded(log):
        for step in steps:
            step()
            marks.append((len(log.events), list(log.live.values())))
    log.recording = False
    whole = _recording(log, [], list(parameters))
    return whole, tuple(
        StepRecording(
            max(event.live_bytes for event in whole.events[max(0, before - 1) : after]),
            tuple(whole.storages[serial] for serial in kept),
        )
        for (before, _), (after, kept) in pairwise(marks)
    )


def saved_storages(function: Callable[..., Any], *inputs: torch.Tensor, **excluded: Any) -> tuple[RecordedStorage, ...]:
    """Distinct storages that `function(*inputs)` saves for backward; `parameters` and `tables` as for `record`."""
    return record(function, inputs, **excluded).saved


def _device(inputs: Sequence[torch.Tensor]) -> torch.device:
    return inputs[0].device if inputs else torch.device("cpu")


@contextmanager
def _recorded(log: _Log) -> Iterator[None]:
    """Log what the ops inside allocate and free, and what their forward saves."""

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        if log.phase() == "forward":
            log.pack(tensor)
        return tensor

    with RecordedTimeline(log), torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        yield


def _run(
    function: Callable[..., Any],
    inputs: Sequence[torch.Tensor],
    log: _Log,
    scalar: torch.Tensor,
    seed: torch.Tensor,
    held: list[Any] | None,
) -> list[int]:
    """The surround of one block; returns the serials alive between forward and backward.

    held: where the caller keeps outputs and their gradients, None where it names neither.
    """
    for tensor in inputs:
        log.see(tensor, "input")
    with _recorded(log):
        # Only the call below holds the outputs: nobody names them, so they die with it unless the graph keeps them.
        loss = loss_of(function(*inputs) if held is None else holding(function(*inputs), held), scalar)
        kept = list(log.live.values())
        if loss.requires_grad:
            loss.backward(seed)
    log.recording = False
    return kept


def holding(outputs: Any, held: list[Any]) -> Any:
    """The outputs, which `held` keeps, as it will keep the gradients handed to them."""
    held.append(outputs)
    for output in tensors_in(outputs):
        if output.requires_grad:
            output.register_hook(held.append)
    return outputs


def loss_of(outputs: Any, scalar: torch.Tensor) -> torch.Tensor:
    """Return the function's own loss where it is one, else that of a tail behind its outputs."""
    if isinstance(outputs, torch.Tensor) and outputs.dim() == 0:
        return outputs
    loss: torch.Tensor = Tail.apply(scalar, *tensors_in(outputs))
    return loss


def tensors_in(tree: Any) -> Iterator[torch.Tensor]:
    return (leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor))


def _recording(log: _Log, kept: list[int], parameters: Sequence[torch.Tensor]) -> Recording:
    gradients = {log.live.get(p.grad.untyped_storage()._cdata) for p in parameters if p.grad is not None}
    storages = tuple(
        RecordedStorage(**{**vars(storage), "role": "parameter_gradient"}) if storage.serial in gradients else storage
        for storage in log.storages
    )
    events = tuple(_events(log.events, storages))
    return Recording(
        saved=tuple(storages[serial] for serial in log.packed),
        kept=tuple(storages[serial] for serial in kept),
        events=events,
        storages=storages,
        peak=_peak(events, storages, with_gradients=False),
        peak_with_parameter_gradients=_peak(events, storages, with_gradients=True),
        collectives=tuple(log.collectives),
        alive_at_end=tuple(storages[serial] for serial in log.live.values()),
    )


def _events(log: list[tuple[Kind, int, str, Phase]], storages: Sequence[RecordedStorage]) -> Iterator[RecordedEvent]:
    live = gradients = 0
    for kind, serial, op, phase in log:
        storage = storages[serial]
        change = storage.bytes if kind == "alloc" else -storage.bytes
        if storage.role == "parameter_gradient":
            gradients += change
        else:
            live += change
        yield RecordedEvent(kind, storage.bytes, op, phase, serial, storage.role, live, live + gradients)


def _peak(
    events: Sequence[RecordedEvent], storages: Sequence[RecordedStorage], *, with_gradients: bool
) -> RecordedPeak:
    if not events:
        return RecordedPeak(0, "input", "forward", -1, ())

    def live(index: int) -> int:
        event = events[index]
        return event.live_bytes_with_parameter_gradients if with_gradients else event.live_bytes

    at = max(range(len(events)), key=live)  # max keeps the first of equals
    alive: dict[int, None] = {}
    for event in events[: at + 1]:
        if event.kind == "alloc":
            alive[event.storage] = None
        else:
            del alive[event.storage]
    shown = tuple(storages[s] for s in alive if with_gradients or storages[s].role != "parameter_gradient")
    return RecordedPeak(live(at), events[at].op, events[at].phase, at, shown)
