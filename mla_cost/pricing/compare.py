"""Which tensors account for the difference between two forms, in groups that add up to all of it."""

from __future__ import annotations

from mla_cost.declared import defaults
from mla_cost.language import evaluate
from mla_cost.language.evaluate import account_of
from mla_cost.language.machine import Allocation, Timeline, once_per_timeline
from mla_cost.language.polynomial import Polynomial
from mla_cost.pricing.block import BlockFigures
from mla_cost.pricing.compile import timeline
from mla_cost.pricing.key import form_of
from mla_cost.results import Difference

INTERMEDIATES = "n x d_c intermediates"
COPIES = "saved S x S copies"
SCORES = "other S x S tensors"
REST = "everything else"
WORKSPACE = "softmax workspace"
FUSED_WORKSPACE = "kernel workspace"
GROUPS = (INTERMEDIATES, COPIES, SCORES, REST)


def compare(ours: BlockFigures, theirs: BlockFigures) -> tuple[Difference, ...]:
    """Group by group, what `ours` has more of than `theirs`: saved, alive at the peak, alive at the allocated peak.

    One block each: the groups say what a block is made of, not how many there are.
    """
    left, right = _sums(ours), _sums(theirs)
    held = FUSED_WORKSPACE if ours.point.kernel.fused else WORKSPACE
    return tuple(
        Difference(
            held if group == WORKSPACE else group,
            *(mine - other for mine, other in zip(left[group], right[group], strict=True)),
        )
        for group in (*GROUPS, WORKSPACE)
    )


@once_per_timeline
def _groups(timeline: Timeline) -> tuple[str, ...]:
    return tuple(_group(allocation) for allocation in timeline.allocations)


def _group(allocation: Allocation) -> str:
    """By dims, not by names of forms: two sequence dims are S x S; heads with a latent width are n x d_c."""
    dims = allocation.dims
    if sum(dim in {"S", "s"} for dim in dims) > 1:
        return COPIES if allocation.saved and allocation.label.endswith(" copy") else SCORES
    per_head = "n" in dims or "l" in dims
    return INTERMEDIATES if per_head and any(dim.startswith("d_c") for dim in dims) else REST


def _sums(it: BlockFigures) -> dict[str, list[int]]:
    timeline = it.at.account.timeline
    found = {group: [0, 0, 0] for group in GROUPS}
    peak, allocated = it.seen.peak.event, it.allocated.peak.event
    of_allocation, sizes = account_of(timeline).of_allocation, it.at.sizes
    for allocation, group in zip(timeline.allocations, _groups(timeline), strict=True):
        amount, row = sizes[of_allocation[allocation.number]], found[group]
        if allocation.saved:
            row[0] += amount
        if allocation.kind != "parameter_gradient":
            row[1] += amount if allocation.alive_at(peak) else 0
            row[2] += amount if allocation.alive_at(allocated) else 0
    found[WORKSPACE] = [0, 0, it.at.work_at(allocated, it.kinds)]
    return found


def sends_more_than_baseline(it: BlockFigures) -> bool:
    """Whether forward sends more than the baseline form under its own scheme, where that divides the heads alike."""
    declared = form_of(defaults.BASELINE)
    if it.point.scheme.name == declared.scheme or not it.point.scheme.divides_heads:
        return False
    run = timeline(it.point.key._replace(form=declared.name, scheme=declared.scheme, kernel=defaults.ATTENTION_KERNEL))
    sent, theirs = (_wire(each).at(it.at.values) for each in (it.at.account.timeline, run))
    return sent > theirs


@once_per_timeline
def _wire(run: Timeline) -> Polynomial:
    return evaluate.wire(run, "forward")
