"""The real CPU allocator against the recorder: the same but for workspaces and gradients added in place."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

pytest.importorskip("torch")

import torch

from mla_cost.checks.reference import DIMS, Recording, Spec, initialise, make_block, record
from mla_cost.checks.reference.allocator import Allocated, CallWorkspace, record_allocator

# fp32: bf16 matrix products bring workspaces of their own. Composite norms: a stand-in's inside is not a kernel's.
CELL = Spec(dims=DIMS["tiny"], seq_len=128, sp=1, dtype="fp32", norm="composite")
SQUARE = 8 * 128 * 128 * 4  # bytes of one S x S tensor


def both(spec: Spec) -> tuple[Recording, Allocated]:
    block = make_block(spec)
    initialise(block)
    x = torch.randn(spec.seq_len, 1, spec.dims.hidden, requires_grad=True)
    recording = record(block, [x])
    block.zero_grad()
    x.grad = None
    return recording, record_allocator(block, [x], {storage.op for storage in recording.storages})


def softmax_workspaces(spec: Spec) -> list[CallWorkspace]:
    return [workspace for workspace in both(spec)[1].workspaces if "softmax" in workspace.op]


def test_explicit_peaks_where_the_recorder_says() -> None:
    recording, allocated = both(CELL)
    assert allocated.peak_bytes == recording.peak_with_parameter_gradients.bytes
    assert softmax_workspaces(CELL) == []


def test_absorbed_softmax_backward_copies_its_strided_gradient() -> None:
    recording, allocated = both(replace(CELL, form="absorbed"))
    assert softmax_workspaces(replace(CELL, form="absorbed")) == [CallWorkspace("_softmax_backward_data", SQUARE)]
    at_softmax = [e for e in recording.events if e.op == "_softmax_backward_data" and e.kind == "alloc"]
    (event,) = at_softmax
    assert allocated.peak_bytes == event.live_bytes_with_parameter_gradients + SQUARE


@pytest.mark.parametrize("form", ["explicit", "laga", "absorbed"])
def test_timelines_differ_only_by_workspace_and_sums_in_place(form: str) -> None:
    recording, allocated = both(replace(CELL, form=form))
    observed = Counter(event.signed_bytes for event in recording.events[1:])  # the first is the input
    real = Counter(allocation.bytes for allocation in allocated.allocations)
    sums = [s for s in recording.storages if s.op == "add" and s.phase == "backward"]
    in_place = Counter(sign * storage.bytes for storage in sums for sign in (1, -1))
    workspaces = Counter(sign * w.bytes for w in allocated.workspaces for sign in (1, -1))
    assert real - observed == workspaces
    assert not (observed - real) - in_place


@pytest.mark.parametrize(
    ("form", "layout", "workspaces"),
    [
        ("explicit", "bnsd", []),
        ("explicit", "bsht", ["_softmax", "_softmax_backward_data"]),  # its scores are a permuted product
        ("absorbed", "bnsd", []),
        ("absorbed", "bsht", []),
    ],
)
def test_the_order_of_letters_decides_who_copies(form: str, layout: str, workspaces: list[str]) -> None:
    found = softmax_workspaces(replace(CELL, form=form, attention_layout=layout))
    assert found == [CallWorkspace(op, SQUARE) for op in workspaces]


def test_without_the_avoidable_copy_there_is_no_workspace() -> None:
    assert softmax_workspaces(replace(CELL, form="absorbed", kernel="eager-bmm")) == []
    one_head = replace(CELL, form="absorbed", dims=replace(CELL.dims, heads=1))
    assert softmax_workspaces(one_head) == []
