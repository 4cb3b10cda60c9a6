"""What one block consists of at its peaks: every tensor by name, the gradients and the workspace among it."""

from __future__ import annotations

from mla_cost.language.dims import declared, product_text
from mla_cost.language.machine import DTYPE_BYTES, Allocation, Timeline, once_per_timeline
from mla_cost.pricing.block import BlockFigures
from mla_cost.results import Breakdown, Memory, TensorCost


def in_detail(memory: Memory, it: BlockFigures) -> Memory:
    """The memory of a row of blocks, with what its first block is made of in place of the parts of a stage."""
    at = it.allocated.peak.event
    allocations = it.at.account.timeline.allocations
    alive = [number for number in it.at.account.gradients if allocations[number].alive_at(at)]
    gradients = sum(map(it.at.bytes_of, alive))
    work = it.at.work_at(at, it.kinds)
    return memory._replace(
        parameter_gradient_bytes=gradients,
        optimizer_bytes=None,
        kernel_workspace_bytes=work,
        peak_moment=it.seen.event(it.seen.peak),
        allocated_peak_moment=it.allocated.event(it.allocated.peak),
        tensors=_tensors(it),
        breakdown=_breakdown(it, gradients, work),
        stages=None,
    )


def _breakdown(it: BlockFigures, gradients: int, work: int) -> tuple[Breakdown, ...]:
    one = it.allocated.peak.bytes
    parts = [
        ("tensors of one block", one - gradients - work),
        ("kernel workspace", work),
        ("parameters", it.parameter_bytes),
        ("parameter gradients of one block", gradients),
        ("the other blocks", it.stage.active.bytes - one),
    ]
    return tuple(Breakdown(name, amount, "counted") for name, amount in parts if amount)


def _tensors(it: BlockFigures) -> tuple[TensorCost, ...]:
    """Every storage that is saved or alive at the peak."""
    event = it.seen.peak.event
    size = {dim: it.point.key.predicates.size(dim).at(it.at.values) for dim in _dims(it.at.account.timeline)}
    return tuple(
        TensorCost(
            name=allocation.label,
            dims=text,
            shape=tuple(size[dim] for dim in allocation.dims),
            dtype=allocation.dtype,
            bytes=it.at.bytes_of(allocation.number),
            storage=allocation.number,
            saved=allocation.saved,
            alive_at_peak=allocation.alive_at(event),
            formula=formula,
        )
        for allocation, text, formula in _texts(it.at.account.timeline)
        if allocation.saved or (allocation.alive_at(event) and allocation.kind != "parameter_gradient")
    )


@once_per_timeline
def _dims(run: Timeline) -> tuple[str, ...]:
    return tuple({dim: None for allocation in run.allocations for dim in allocation.dims})


@once_per_timeline
def _texts(run: Timeline) -> tuple[tuple[Allocation, str, str], ...]:
    return tuple((a, " ".join(a.dims), byte_formula(a)) for a in run.allocations)


def byte_formula(allocation: Allocation) -> str:
    """The bytes of a storage from the symbols of its dims: 2*S*b*l*(k+r)."""
    return product_text((str(DTYPE_BYTES[allocation.dtype]), *declared(allocation.dims)))
