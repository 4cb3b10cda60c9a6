"""Real dims without memory: one rank's layer on fake tensors and a fake process groups, in one process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils.flop_counter import FlopCounterMode

from mla_cost.checks.reference.layer import make_inputs, make_layer
from mla_cost.checks.reference.measure import Phase, Recording, StepRecording, record, record_steps
from mla_cost.checks.reference.pipeline import PipelineSpec, StageModule
from mla_cost.checks.reference.spec import Spec
from mla_cost.checks.reference.tp import ProcessGroups, make_groups


@contextmanager
def fake_groups(
    sp: int, tp: int = 1, ep: int = 1, etp: int = 1, *, pp: int = 1, stage: int = 0
) -> Iterator[ProcessGroups]:
    """First rank of a stage, in groups that exchange nothing; None for an axis of size 1, where none is called."""
    ranks = max(sp * tp, ep * etp)
    if pp * ranks == 1:
        yield ProcessGroups()
        return
    dist.init_process_group("fake", rank=stage * ranks, world_size=pp * ranks, store=FakeStore())
    try:
        yield make_groups(sp, tp, ep, etp, pp)
    finally:
        dist.destroy_process_group()


@contextmanager
def fake_group(size: int) -> Iterator[dist.ProcessGroup | None]:
    """Rank 0 of one sp group of `size` that exchanges nothing; None at size 1."""
    with fake_groups(size) as groups:
        yield groups.sp


def run_fake(spec: Spec) -> Recording:
    """Record the layers of the spec on one rank, forward and backward, without any of their memory."""
    with fake_groups(spec.sp, spec.tp, spec.ep, spec.etp) as groups, FakeTensorMode():
        recording = record(make_layer(spec, groups), make_inputs(spec), holds=spec.caller_holds)
    return replace(recording, by_construction=spec.by_construction)


def run_stage(pipeline: PipelineSpec, stage: int) -> tuple[Recording, tuple[StepRecording, ...]]:
    """Record one optimizer step of a stage on one rank: the whole of it, and each pass."""
    spec = pipeline.layers
    degrees = (spec.sp, spec.tp, spec.ep, spec.etp)
    with fake_groups(*degrees, pp=pipeline.stages, stage=stage) as groups, FakeTensorMode():
        run = StageModule(pipeline, stage, groups)
        tables = [*run.module.buffers(), *run.gradients]
        return record_steps(run.steps(), parameters=run.module.parameters(), tables=tables)


def count_flops(spec: Spec) -> dict[Phase, dict[str, int]]:
    """Flops per op as torch's FlopCounterMode counts them: matrix products only, stand-ins of fused attention 0."""
    degrees = (spec.sp, spec.tp, spec.ep, spec.etp)
    with fake_groups(*degrees) as groups, FakeTensorMode(), FlopCounterMode(display=False) as counter:
        out = make_layer(spec, groups)(*make_inputs(spec))
        forward = _per_op(counter)
        out.backward(torch.empty_like(out))
        both = _per_op(counter)
    backward = {op: flops - forward.get(op, 0) for op, flops in both.items()}
    return {"forward": forward, "backward": backward}


def _per_op(counter: FlopCounterMode) -> dict[str, int]:
    return {op.__name__: flops for op, flops in counter.get_flop_counts()["Global"].items()}
