"""Real dims without memory: one rank's block on fake tensors and a fake process group, in one process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils.flop_counter import FlopCounterMode

from mla_cost.reference.forms import make_stack
from mla_cost.reference.measure import Phase, Recording, record
from mla_cost.reference.spec import DTYPES, Spec


@contextmanager
def fake_group(size: int) -> Iterator[dist.ProcessGroup | None]:
    """Rank 0 of a group of `size` that exchanges nothing; None at size 1, where no exchange is called."""
    if size == 1:
        yield None
        return
    dist.init_process_group("fake", rank=0, world_size=size, store=FakeStore())
    try:
        yield dist.group.WORLD
    finally:
        dist.destroy_process_group()


def run_fake(spec: Spec) -> Recording:
    """Record the blocks of the spec, forward and backward, without any of their memory."""
    with fake_group(spec.sp) as group, FakeTensorMode():
        recording = record(make_stack(spec, group), [_input(spec)])
    return replace(recording, by_construction=spec.by_construction)


def count_flops(spec: Spec) -> dict[Phase, dict[str, int]]:
    """Flops per op as torch's FlopCounterMode counts them: matrix products only, stand-ins of fused kernels 0."""
    with fake_group(spec.sp) as group, FakeTensorMode(), FlopCounterMode(display=False) as counter:
        out = make_stack(spec, group)(_input(spec))
        forward = _per_op(counter)
        out.backward(torch.empty_like(out))
        both = _per_op(counter)
    backward = {op: flops - forward.get(op, 0) for op, flops in both.items()}
    return {"forward": forward, "backward": backward}


def _input(spec: Spec) -> torch.Tensor:
    shape = (spec.seq_len // spec.sp, spec.micro_batch, spec.dims.hidden)
    return torch.empty(shape, dtype=DTYPES[spec.dtype], requires_grad=True)


def _per_op(counter: FlopCounterMode) -> dict[str, int]:
    return {op.__name__: flops for op, flops in counter.get_flop_counts()["Global"].items()}
