"""Claims about numbers instead of costs: the forms run on real ranks at small dims (needs the extra `reference`)."""

from __future__ import annotations

from mla_cost.checks.evidence.source import PublishedRow
from mla_cost.errors import InputError, install

HOW = (
    "missing feature: agreement of numbers is a property of running code, which no count predicts. "
    "`mla-cost evidence --executor` runs the forms on real ranks and compares outputs and every gradient (it needs "
    f"torch: {install('reference')})"
)
POSITIONS = 64  # divides by every SP of the rows


def run(row: PublishedRow) -> bool | float:
    """Whether the two forms agree bit for bit, or their largest difference over the largest magnitude, in fp32.

    Raises:
        InputError: torch is not installed.

    """
    try:
        from mla_cost.checks.reference.ranks import run_ranks
        from mla_cost.checks.reference.spec import DIMS, Spec
    except ImportError:
        raise InputError(f"the executor needs torch: {install('reference')}", field="--executor") from None
    assert row.executor is not None
    sides = [str(side["form"]) for side in (row.of, row.against)]
    specs = [
        Spec(form=form, dims=DIMS["tiny"], seq_len=POSITIONS, sp=sp, dtype="fp32")
        for sp in row.executor.sp
        for form in sides
    ]
    runs = run_ranks(specs)
    pairs = list(zip(runs[::2], runs[1::2], strict=True))
    if row.executor.check == "identical":
        return all(ours.identical(theirs) for ours, theirs in pairs)
    return max(max(ours.differences(theirs).values()) for ours, theirs in pairs)
