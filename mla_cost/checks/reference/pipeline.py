"""A pipeline: parts of a model on stages, Megatron's schedules, and one step of a stage as plain torch.

Line by line it is docs/decisions/0011-the-pipeline-style.md. p stages (pp), v parts on each, m micro-batches. Part j p
+ i of the model is chunk j of stage i. Positions of one rank u, micro-batch b, hidden h.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

from mla_cost.checks.reference.layer import ONE_RANK, Embedding, Head, Lookup, MtpInput, make_layer
from mla_cost.checks.reference.spec import DTYPES, REMAT, Spec
from mla_cost.checks.reference.tp import ProcessGroups

ORDERS = ("megatron", "gpipe")
MTP = "mtp_"  # before the name of a layer: a multi-token-prediction module around such a layer


@dataclass(frozen=True)
class PipelineSpec:
    """What a pipeline runs.

    layers  dims, degrees, kernel and recomputation of every layer; its `layer` and `layers` are not read.
    parts   names of the layers of each part, in order: "embedding", "dense", "moe", "mtp_dense" or "mtp_moe" (a
            multi-token-prediction module), "head". Only the first part embeds, only the last has the head.
    order   Megatron's order of passes, or "gpipe".
    """

    layers: Spec
    parts: tuple[tuple[str, ...], ...]
    stages: int
    num_micro_batches: int
    order: str = "megatron"

    def __post_init__(self) -> None:
        """Refuse parts that stages do not divide, and groups of micro-batches that stages do not fill."""
        if self.order not in ORDERS[: 2 if self.chunks == 1 else 1]:
            raise ValueError(f"no order {self.order} of {self.chunks} chunks")
        if len(self.parts) % self.stages:
            raise ValueError(f"{self.stages} stages do not divide {len(self.parts)} parts")
        if self.chunks > 1 and self.num_micro_batches % self.stages:
            raise ValueError(f"interleaved, {self.num_micro_batches} micro-batches do not fill {self.stages} stages")

    @property
    def chunks(self) -> int:
        """Parts on each stage."""
        return len(self.parts) // self.stages

    def part(self, stage: int, chunk: int) -> int:
        """The number of a stage's chunk in the order of the model."""
        return chunk * self.stages + stage


class Pass(NamedTuple):
    """Forward or backward of a micro-batch through a chunk, all from 0."""

    forward: bool
    chunk: int
    micro_batch: int


def passes(pipeline: PipelineSpec, stage: int) -> Iterator[Pass]:
    """What a stage runs, in the order asked for.

    "gpipe": as `ScheduleGPipe` of torch 2.13 orders it (torch/distributed/pipelining/schedules.py): every forward,
    then every backward, micro-batches in the same order.
    """
    if pipeline.order == "gpipe":
        for forward in (True, False):
            yield from (Pass(forward, 0, micro_batch) for micro_batch in range(pipeline.num_micro_batches))
    else:
        yield from _megatron(pipeline, stage)


def _megatron(pipeline: PipelineSpec, stage: int) -> Iterator[Pass]:
    """Warm-up, then one forward and one backward in turn, then cool-down.

    As `forward_backward_pipelining_without_interleaving` and `.._with_interleaving` of Megatron-Core at d98e8a64 order
    it (pipeline_parallel/schedules.py), with groups of as many micro-batches as there are stages.
    """
    p, v, m = pipeline.stages, pipeline.chunks, pipeline.num_micro_batches
    group = p if v > 1 else m
    order = [
        (chunk, first + micro_batch)
        for first in range(0, m, group)
        for chunk in range(v)
        for micro_batch in range(group)
    ]
    ahead = p - stage - 1 if v == 1 else 2 * (p - stage - 1) + (v - 1) * group
    forward = [Pass(True, *at) for at in order]
    backward = [Pass(False, v - 1 - chunk, micro_batch) for chunk, micro_batch in order]
    warm_up = min(ahead, len(order))
    yield from forward[:warm_up]
    for pair in zip(forward[warm_up:], backward, strict=False):
        yield from pair
    yield from backward[len(order) - warm_up :]


class Mtp(nn.Module):
    """A multi-token-prediction module: its input, a layer and a last norm of its own, the model's head."""

    def __init__(self, spec: Spec, groups: ProcessGroups, lookup: Lookup | None, projection: nn.Linear) -> None:
        super().__init__()
        self.input = MtpInput(_as(spec, "mtp_input"), _without_ep(groups), lookup)
        self.layer = _layer(spec, groups)
        self.head = Head(_as(spec, "head"), _without_ep(groups), projection)

    def forward(self, x: Tensor) -> Tensor:
        """`[u b h]` -> `[u b h]`, which its head takes."""
        x = self.input(x)
        return self.layer(x)


class ChunkModule(nn.Module):
    """One part of the model."""

    def __init__(self, spec: Spec, names: Sequence[str], groups: ProcessGroups = ONE_RANK) -> None:
        super().__init__()
        ahead = [name.removeprefix(MTP) for name in names if name.startswith(MTP)]
        inside = [name for name in names if name not in ("embedding", "head") and not name.startswith(MTP)]
        ends = _without_ep(groups)
        self.embedding = Embedding(_as(spec, "embedding"), ends) if "embedding" in names else None
        self.layers = nn.ModuleList(_layer(_as(spec, name), groups) for name in inside)
        self.head = Head(_as(spec, "head"), ends) if "head" in names else None
        self.mtp = nn.ModuleList(self._mtp(_as(spec, name), groups) for name in ahead)

    def _mtp(self, spec: Spec, groups: ProcessGroups) -> Mtp:
        assert self.head is not None
        return Mtp(spec, groups, None if self.embedding is None else self.embedding.embedding, self.head.head)

    def read(self, ids: Sequence[Tensor]) -> None:
        """Take the tokens `[s b]` of a micro-batch: `ids[k]` those k positions ahead."""
        if self.embedding is not None:
            self.embedding.read(ids[0])
        if self.head is not None:
            self.head.read(ids[1])
        for ahead, module in enumerate(self._ahead, 1):
            module.input.read(ids[ahead])
            module.head.read(ids[ahead + 1])

    @property
    def _ahead(self) -> list[Mtp]:
        return [module for module in self.mtp if isinstance(module, Mtp)]

    def forward(self, x: Tensor | None) -> Tensor:
        """`[u b h]`, nothing where it embeds -> `[u b h]`, or the loss where it has the head."""
        if self.embedding is not None:
            x = self.embedding()
        for layer in self.layers:
            x = layer(x)
        if self.head is not None:
            return self._loss(x)
        assert x is not None
        return x

    def _loss(self, x: Tensor | None) -> Tensor:
        """The sum of the losses. Every module takes the hidden states of the one before it."""
        hidden = [x]
        for module in self._ahead:
            hidden.append(module(hidden[-1]))
        losses = [module.head(y) for module, y in zip(self._ahead, hidden[1:], strict=True)]
        assert self.head is not None
        loss: Tensor = self.head(x)
        return sum(losses, loss)


def _as(spec: Spec, layer: str) -> Spec:
    """The spec of one layer of the model: with experts where it has any, and what it has of what runs again."""
    again = [name for name in spec.remat.split("+") if layer in REMAT.get(name, ())]
    ep = spec.ep if layer == "moe" else 1
    return replace(spec, layer=layer, layers=1, ep=ep, remat="+".join(again) or "none")


def _layer(spec: Spec, groups: ProcessGroups) -> nn.Module:
    return make_layer(spec, groups if spec.layer == "moe" else _without_ep(groups))


def _without_ep(groups: ProcessGroups) -> ProcessGroups:
    """The groups of a layer without experts."""
    return replace(groups, ep=None)


def stand_gradients(parameters: Iterable[nn.Parameter]) -> list[Tensor]:
    """Buffers in fp32 that the gradient of each parameter is added to as soon as it is there, and then let go."""
    parameters = list(parameters)
    buffers = [torch.zeros_like(parameter, dtype=torch.float32) for parameter in parameters]
    for parameter, buffer in zip(parameters, buffers, strict=True):
        parameter.register_post_accumulate_grad_hook(partial(_add, buffer))
    return buffers


def _add(buffer: Tensor, parameter: Tensor) -> None:
    assert parameter.grad is not None
    buffer.add_(parameter.grad)
    parameter.grad = None


class Message(NamedTuple):
    """What one part makes of a micro-batch for another: hidden states, or their gradient."""

    source: int
    target: int
    micro_batch: int


class StageModule:
    """One rank of a stage: its chunks, the gradients of its weights, and what is in flight.

    Between the passes of a micro-batch a stage holds what it received and the graph; what it sent it has let go.
    """

    def __init__(
        self,
        pipeline: PipelineSpec,
        stage: int,
        groups: ProcessGroups = ONE_RANK,
        tokens: Sequence[Sequence[Tensor]] = (),
    ) -> None:
        """Make the chunks, parameters uninitialised. tokens: for each micro-batch what `Chunk.read` takes, or none."""
        self.pipeline, self.stage, self.group, self.tokens = pipeline, stage, groups.pp, tokens
        parts = [pipeline.parts[pipeline.part(stage, chunk)] for chunk in range(pipeline.chunks)]
        self.chunks = [ChunkModule(pipeline.layers, part, groups) for part in parts]
        self.module = nn.ModuleList(self.chunks)
        self.gradients = stand_gradients(self.module.parameters())
        self.losses: list[Tensor] = []
        self._in_flight: list[deque[tuple[Tensor | None, GradientEdge]]] = [deque() for _ in parts]
        self._given: Tensor | None = None
        self._sending: list[Any] = []

    def steps(self) -> Iterator[Callable[[], None]]:
        """Return the passes of one optimizer step, in order, to be called."""
        order = [*passes(self.pipeline, self.stage), None]
        for own, after in pairwise(order):
            assert own is not None
            yield partial(self._pass, own, after)

    def _pass(self, own: Pass, after: Pass | None) -> None:
        """Run a pass; then in one exchange send what it made and receive what the next one takes."""
        if self._given is None:
            self._given = self._exchange(None, None, self._taken(own))
        given, self._given = self._given, None
        made = self._forward(own, given) if own.forward else self._backward(own, given)
        self._given = self._exchange(made, self._sent(own), self._taken(after) if after else None)
        if after is None:
            for work in self._sending:
                work.wait()

    def _forward(self, own: Pass, x: Tensor | None) -> Tensor | None:
        """Run the chunk and keep what it was given and the graph's end. Returns its output, unless that is the loss."""
        if self.tokens:
            self.chunks[own.chunk].read(self.tokens[own.micro_batch])
        if x is not None:
            x.requires_grad_()
        y: Tensor = self.chunks[own.chunk](x)
        if not y.dim():
            y = y / self.pipeline.num_micro_batches
            self.losses.append(y.detach())
        self._in_flight[own.chunk].append((x, get_gradient_edge(y)))
        return y.detach() if y.dim() else None

    def _backward(self, own: Pass, gradient: Tensor | None) -> Tensor | None:
        """Run the graph from its end. Returns the gradient of what the chunk was given."""
        x, end = self._in_flight[own.chunk].popleft()
        torch.autograd.backward([end], [gradient])
        return None if x is None else x.grad

    def _taken(self, own: Pass) -> Message | None:
        """What a pass takes from another part."""
        part = self.pipeline.part(self.stage, own.chunk)
        source = part - 1 if own.forward else part + 1
        return Message(source, part, own.micro_batch) if 0 <= source < len(self.pipeline.parts) else None

    def _sent(self, own: Pass) -> Message | None:
        """What a pass makes for another part."""
        part = self.pipeline.part(self.stage, own.chunk)
        target = part + 1 if own.forward else part - 1
        return Message(part, target, own.micro_batch) if 0 <= target < len(self.pipeline.parts) else None

    def _exchange(self, made: Tensor | None, sent: Message | None, taken: Message | None) -> Tensor | None:
        """Send and receive at once: the other stage may wait for either. What is received is a new tensor.

        The message holds what is sent until it has left; the stage does not.
        """
        received = self._empty() if taken else None
        if self.group and sent and made is not None:
            to = sent.target % self.pipeline.stages
            self._sending.append(dist.isend(made, group=self.group, group_dst=to, tag=self._tag(sent)))
        if self.group and taken and received is not None:
            source = taken.source % self.pipeline.stages
            dist.recv(received, group=self.group, group_src=source, tag=self._tag(taken))
        self._sending = [work for work in self._sending if not work.is_completed()]
        return received

    def _tag(self, message: Message) -> int:
        """A number of its own for every message: two stages exchange them out of order."""
        place = message.source * len(self.pipeline.parts) + message.target
        return place * self.pipeline.num_micro_batches + message.micro_batch

    def _empty(self) -> Tensor:
        spec = self.pipeline.layers
        shape = (spec.seq_len // (spec.sp * spec.tp), spec.micro_batch, spec.dims.hidden)
        return torch.empty(shape, dtype=DTYPES[spec.dtype])
