"""Torch's own fully_shard around the parts of a model, one rank of several: what is alive along two micro-batches.

Units as pytorch/torchtitan wraps them (models/llama4/infra/parallelize.py, apply_fsdp): the embedding, every layer, the
head, then the whole, which has no weights left. Weights are fp32, gathered in bf16.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd.graph import get_gradient_edge
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Shard
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from mla_cost.checks.reference.pipeline import ChunkModule
from mla_cost.checks.reference.spec import DTYPES, Spec


class Sharded(NamedTuple):
    """How it is sharded. ranks: of one replica. reduce: the dtype gradients are summed in over ranks."""

    ranks: int
    replicas: int = 1
    given_back: bool = True
    ahead: int = 0
    reduce: str = "fp32"


class Lived(NamedTuple):
    """Bytes. standing: before the second micro-batch. peak: the most beside that along it. sent: collectives' calls."""

    standing: int
    peak: int
    sent: dict[str, int]


EXPERTS = 3  # dims of their weights, and of no other
KINDS = {"_allgather_base_": "all_gather", "_reduce_scatter_base_": "reduce_scatter", "allreduce_": "all_reduce"}


class _Watch(TorchDispatchMode):
    """Bytes of storages alive, after every op. Storages are resized in place, so each is asked for its size anew."""

    def __init__(self) -> None:
        super().__init__()
        self.live: dict[int, weakref.ref[Any]] = {}  # by address, which another storage may have next
        self.peak = 0
        self.sent: dict[str, int] = {}

    @property
    def total(self) -> int:
        """Bytes alive now."""
        storages = [storage for storage in (ref() for ref in self.live.values()) if storage is not None]
        self.live = {storage._cdata: weakref.ref(storage) for storage in storages}
        return sum(storage.nbytes() for storage in storages)

    def see(self, values: Any) -> None:
        """Storages of tensors in a tree."""
        for value in tree_leaves(values):
            if isinstance(value, Tensor) and value.device.type != "meta":
                storage = value.untyped_storage()
                self.live[storage._cdata] = weakref.ref(storage)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        name = func.__name__.split(".")[0]
        if name in KINDS:
            self.sent[KINDS[name]] = self.sent.get(KINDS[name], 0) + 1
        self.see((args, kwargs, out))
        self.peak = max(self.peak, self.total)
        return out


def run(spec: Spec, parts: tuple[str, ...], sharded: Sharded, *, fake: bool = False) -> Lived:
    """One rank's second micro-batch of a chunk of these layers. fake: on tensors without memory."""
    world = sharded.ranks * sharded.replicas
    dist.init_process_group("fake", rank=0, world_size=world, store=FakeStore())
    try:
        mesh = _mesh(sharded)
        with FakeTensorMode() if fake else nullcontext():
            return _lived(spec, parts, sharded, mesh)
    finally:
        dist.destroy_process_group()


def _lived(spec: Spec, parts: tuple[str, ...], sharded: Sharded, mesh: DeviceMesh) -> Lived:
    module = ChunkModule(spec, parts)
    for parameter in module.parameters():
        parameter.data = torch.zeros_like(parameter, dtype=torch.float32)
    _wrap(module, sharded, mesh)
    watch = _Watch()
    with watch:
        watch.see(list(module.buffers()))
        _step(module)
        tables = sum(buffer.untyped_storage().nbytes() for buffer in module.buffers())
        standing = watch.total
        watch.peak, watch.sent = 0, {}
        _step(module)
    return Lived(standing - tables, watch.peak - standing, watch.sent)


def _step(module: Callable[[Tensor | None], Tensor]) -> None:
    edge = get_gradient_edge(module(None))
    torch.autograd.backward([edge], [None])


def _wrap(module: ChunkModule, sharded: Sharded, mesh: DeviceMesh) -> None:
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=DTYPES[sharded.reduce])
    given: Any = {"mesh": mesh, "mp_policy": policy, "reshard_after_forward": sharded.given_back}
    units = [module.embedding, *module.layers, module.head]
    wrapped: list[FSDPModule] = []
    for unit in units:
        assert unit is not None
        few = [p for p in unit.parameters() if p.dim() == EXPERTS and p.size(0) < sharded.ranks]
        placed = (lambda p, few=few: Shard(1) if any(p is one for one in few) else None) if few else None
        wrapped.append(fully_shard(unit, **given, shard_placement_fn=placed))
    fully_shard(module, mesh=mesh, mp_policy=policy)
    for place, one in enumerate(wrapped if sharded.ahead else ()):
        one.set_modules_to_forward_prefetch(wrapped[place + 1 : place + 1 + sharded.ahead])
        one.set_modules_to_backward_prefetch(wrapped[max(0, place - sharded.ahead) : place][::-1])


def _mesh(sharded: Sharded) -> DeviceMesh:
    if sharded.replicas == 1:
        return init_device_mesh("cpu", (sharded.ranks,))
    return init_device_mesh("cpu", (sharded.replicas, sharded.ranks), mesh_dim_names=("replicate", "shard"))
