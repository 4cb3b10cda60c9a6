"""Real dims without memory: one rank's block on fake tensors and a fake process group, in one process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing._internal.distributed.fake_pg import FakeStore

from mla_cost.reference.forms import make_block
from mla_cost.reference.measure import Recording, record
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
    """Record one block of the spec, forward and backward, without any of its memory."""
    with fake_group(spec.sp) as group, FakeTensorMode():
        block = make_block(spec, group)
        shape = (spec.seq_len // spec.sp, spec.micro_batch, spec.dims.hidden)
        x = torch.empty(shape, dtype=DTYPES[spec.dtype], requires_grad=True)
        recording = record(block, [x])
    return replace(recording, by_construction=spec.by_construction)
