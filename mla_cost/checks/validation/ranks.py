"""Real ranks over gloo: forms agree, shards agree with one rank, and the collectives called are the model's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from mla_cost.checks.reference.measure import RecordedCollective
from mla_cost.checks.reference.ranks import RankRun, run_ranks
from mla_cost.checks.reference.spec import Spec
from mla_cost.checks.validation.cells import name
from mla_cost.checks.validation.fake import calls_difference, model_calls, wire_bytes
from mla_cost.checks.validation.predict import predicted
from mla_cost.checks.validation.report import CheckRow, row
from mla_cost.declared import defaults
from mla_cost.pricing.key import form_of

# Largest difference over largest magnitude, tensor by tensor. bf16 rounds at 2**-9, several times on the way.
BOUNDS = {"fp32": 1e-3, "bf16": 2**-5}


def check_ranks(specs: Sequence[Spec]) -> Iterator[CheckRow]:
    """Every check of these cells, after one launch of as many processes as the largest asks for."""
    wanted = list(dict.fromkeys([*specs, *map(_alone, specs), *map(_baseline, specs)]))
    runs = dict(zip(wanted, run_ranks(wanted), strict=True))
    for spec in specs:
        yield from _checks(spec, runs)


def _alone(spec: Spec) -> Spec:
    return spec.with_sp(1)


def _baseline(spec: Spec) -> Spec:
    """The form that every other must equal, on one rank and under a scheme and kernel that it has."""
    return replace(spec, form=defaults.BASELINE, scheme=None, kernel=defaults.ATTENTION_KERNEL, sp=1)


def _checks(spec: Spec, runs: Mapping[Spec, RankRun]) -> Iterator[CheckRow]:
    run, cell = runs[spec], name(spec)
    if _baseline(spec) != spec:
        yield _within("forms agree", cell, run, runs[_baseline(spec)])
    if spec.sp > 1:
        yield _within("ranks agree", cell, run, runs[_alone(spec)])
    elif _same_maths(spec):
        yield _identical(cell, run, runs[_baseline(spec)])
    if spec.layers == 1:
        yield _calls(spec, run)


def _within(check: str, cell: str, run: RankRun, other: RankRun) -> CheckRow:
    differences = run.differences(other)
    bound = BOUNDS[run.spec.dtype]
    missing = sorted(other.tensors.keys() ^ differences.keys())
    fault = ", ".join(f"{tensor} differs by {d:.1e}" for tensor, d in differences.items() if not d <= bound)
    if missing:
        fault = f"only one side has {', '.join(missing)}"
    worst = max(differences, key=differences.__getitem__)
    detail = f"{len(differences)} tensors within {bound:.1e}, worst {worst} {differences[worst]:.1e}"
    return row(check, cell, fault, detail)


def _same_maths(spec: Spec) -> bool:
    """Whether the cell is the baseline's maths under another name: on one rank nothing may tell them apart."""
    return spec.form != defaults.BASELINE and form_of(spec.form).name == defaults.BASELINE and _plain(spec)


def _plain(spec: Spec) -> bool:
    return spec.kernel == defaults.ATTENTION_KERNEL


def _identical(cell: str, run: RankRun, other: RankRun) -> CheckRow:
    fault = "" if run.identical(other) else "outputs or gradients differ in some bit"
    return row("bit-identical", cell, fault, f"{len(run.tensors)} tensors")


def _calls(spec: Spec, run: RankRun) -> CheckRow:
    """What each rank called against the model, call by call."""
    ours = model_calls(predicted(spec))
    faults = [(rank, calls_difference(ours, _called(calls, spec.sp))) for rank, calls in enumerate(run.collectives)]
    fault = "; ".join(f"rank {rank}: {text}" for rank, text in faults if text)
    return row("collectives called", name(spec), fault, f"{len(ours)} calls on each of {spec.sp} ranks")


def _called(calls: Sequence[RecordedCollective], ranks: int) -> list[tuple[str, str, str, int, int]]:
    return [(c.phase, c.kind, c.dtype, c.payload_bytes, wire_bytes(c.kind, c.payload_bytes, ranks)) for c in calls]
