"""Real ranks over gloo: sharded runs equal the single rank, and call the collectives that the fake group saw."""

from __future__ import annotations

from dataclasses import replace

import pytest

pytest.importorskip("torch")

from mla_cost.checks.reference import DIMS, Spec, run_fake
from mla_cost.checks.reference.ranks import RankRun, run_ranks

pytestmark = pytest.mark.xdist_group("ranks")  # one launch of processes serves every test of this file

BOUNDS = {"fp32": 1e-5, "bf16": 2**-5}  # largest difference over largest magnitude; bf16 rounds at 2**-9
CELL = Spec(dims=DIMS["tiny"], seq_len=16, sp=1, micro_batch=2, dtype="fp32", mask="tensor")
PAIRS = [("explicit", None), ("explicit", "kv-gather"), ("laga", None), ("absorbed", None)]
SPECS = [
    replace(CELL, form=form, scheme=scheme, dtype=dtype, sp=sp)
    for dtype, sp in (*(("fp32", sp) for sp in (1, 2, 4, 8)), ("bf16", 1), ("bf16", 4))
    for form, scheme in PAIRS
] + [
    replace(CELL, form=form, scheme=scheme, sp=2, **change)
    for form, scheme in PAIRS
    for change in (
        {"kernel": "mem-efficient"},
        {"kernel": "npu-fusion"},
        {"dims": replace(CELL.dims, rope=0, q_lora_rank=None), "v_layout": "contiguous"},
        {"layers": 2},
    )
]


def name(spec: Spec) -> str:
    rope = "" if spec.dims.rope else "-no-rope"
    return f"{spec.form}-{spec.scheme}-{spec.kernel}-{spec.dtype}-sp{spec.sp}-x{spec.layers}{rope}"


@pytest.fixture(scope="module")
def runs() -> dict[Spec, RankRun]:
    singles = [replace(spec, sp=1, form="explicit", scheme=None) for spec in SPECS]
    specs = list(dict.fromkeys([*SPECS, *singles]))
    return dict(zip(specs, run_ranks(specs), strict=True))


@pytest.mark.parametrize("spec", SPECS, ids=name)
def test_every_rank_count_gives_the_numbers_of_one(spec: Spec, runs: dict[Spec, RankRun]) -> None:
    single = runs[replace(spec, sp=1, form="explicit", scheme=None)]
    differences = runs[spec].differences(single)
    assert differences.keys() == single.tensors.keys()
    assert max(differences.values()) < BOUNDS[spec.dtype], differences


@pytest.mark.parametrize("dtype", BOUNDS)
def test_at_one_rank_laga_is_explicit_bit_for_bit(dtype: str, runs: dict[Spec, RankRun]) -> None:
    cell = replace(CELL, dtype=dtype)
    assert runs[replace(cell, form="laga")].identical(runs[cell])


@pytest.mark.parametrize("spec", [spec for spec in SPECS if spec.dtype == "fp32"], ids=name)
def test_every_rank_calls_what_the_fake_group_saw(spec: Spec, runs: dict[Spec, RankRun]) -> None:
    expected = run_fake(spec).collectives
    assert runs[spec].collectives == (expected,) * spec.sp
    assert bool(expected) == (spec.sp > 1)
