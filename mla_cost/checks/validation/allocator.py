"""Real allocator: what torch's CPU allocator hands out at small dims, against the model's allocated timeline.

fp32, because bf16 products bring workspaces of their own, and op-by-op norms, because a stand-in's inside is not a
kernel's. Process groups exchange nothing here, but a rank allocates what it would.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from mla_cost.checks.reference.allocator import Allocated, record_allocator
from mla_cost.checks.reference.fake import fake_group
from mla_cost.checks.reference.forms import initialise, make_stack
from mla_cost.checks.reference.spec import DTYPES, Spec
from mla_cost.checks.validation.cells import name
from mla_cost.checks.validation.predict import predicted, predicted_stack
from mla_cost.checks.validation.report import CheckRow, row
from mla_cost.checks.validation.traces import TraceStep, first_difference, settled
from mla_cost.language.evaluate import Evaluation
from mla_cost.language.workspace import kinds_of

FAMILY = "cpu"
SOFTMAX = ("_softmax", "_softmax_backward_data")


def check_allocator(spec: Spec) -> Iterator[CheckRow]:
    """Peak, whole timeline and softmax workspaces of one cell; of a stack of blocks the peak."""
    seen, cell = _allocated(spec), name(spec)
    stack = predicted_stack(spec, FAMILY)
    ours = stack.allocated_peak_bytes - stack.parameter_bytes
    fault = f"model {ours:,} B, allocator {seen.peak_bytes:,} B" if ours != seen.peak_bytes else ""
    yield row("allocated peak", cell, fault, f"{ours:,} B")
    if spec.layers == 1:
        at = predicted(spec)
        yield _timeline(at, seen, cell)
        yield _workspaces(at, seen, cell)


def _allocated(spec: Spec) -> Allocated:
    with fake_group(spec.sp) as group:
        block = make_stack(spec, group)
        initialise(block)
        shape = (spec.seq_len // spec.sp, spec.micro_batch, spec.dims.hidden)
        x = torch.randn(shape, dtype=DTYPES[spec.dtype], requires_grad=True)
        return record_allocator(block, [x], SOFTMAX)


def _timeline(at: Evaluation, seen: Allocated, cell: str) -> CheckRow:
    theirs = settled(TraceStep(event.bytes, of_parameter=False, text=event.op) for event in seen.allocations)
    ours = model_allocations(at)[1:]  # the input is there before the allocator is watched
    return row("allocated timeline", cell, first_difference(ours, theirs), f"{len(ours)} events")


def model_allocations(at: Evaluation) -> list[TraceStep]:
    """The model's timeline as an allocator shows it: gradients added in place, workspace taken and given back."""
    steps: list[TraceStep] = []
    for number, event in enumerate(at.account.timeline.events):
        if event.allocation is None:
            work = at.work_at(number, kinds_of(FAMILY))
            steps += [
                TraceStep(sign * work, of_parameter=False, text=f"workspace of {event.op}") for sign in (1, -1) if work
            ]
        elif not event.merged and (size := at.bytes_of(event.allocation.number)):
            sign = 1 if event.what == "alloc" else -1
            steps.append(TraceStep(sign * size, of_parameter=False, text=f"{event.phase}: {event.allocation.label}"))
    return settled(steps)


def _workspaces(at: Evaluation, seen: Allocated, cell: str) -> CheckRow:
    ours = [work for number, _ in at.account.works if (work := at.work_at(number, kinds_of(FAMILY)))]
    theirs = [workspace.bytes for workspace in seen.workspaces]
    fault = f"model {ours}, allocator {theirs}" if ours != theirs else ""
    return row("softmax workspace", cell, fault, ", ".join(f"{work:,} B" for work in ours) or "none")
