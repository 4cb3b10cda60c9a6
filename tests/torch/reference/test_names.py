"""`names: held`: the program against the executor written in that style, storage by storage and event by event."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import pytest

pytest.importorskip("torch")

from mla_cost.checks.reference import DIMS, Recording, Spec, make_block, run_fake
from mla_cost.checks.validation.cells import pairings
from mla_cost.checks.validation.fake import check_cell
from mla_cost.checks.validation.predict import predicted
from mla_cost.language.evaluate import Evaluation

CELL = Spec(dims=replace(DIMS["deepseek-v3"], q_lora_rank=None), seq_len=4096, sp=8, names="held", idle_mlp=8192)
SQUARE = 2 * 16 * 4096**2
STYLES: dict[str, dict[str, Any]] = {
    "as it is": {},
    "mask tensor": {"mask": "tensor"},
    "fp32 softmax": {"softmax_dtype": "fp32"},
    "bnsd": {"attention_layout": "bnsd"},
    "bsht, batch 2": {"attention_layout": "bsht", "micro_batch": 2},
    "sp 1": {"sp": 1},
    "one head a rank": {"sp": 128},
    "no rope": {"dims": replace(CELL.dims, rope=0)},
    "query latent": {"dims": DIMS["deepseek-v3"]},
    "two blocks": {"layers": 2},
}
KERNELS = ("eager", "eager-bmm", "npu-fusion")


# Kernels take turns: every style meets every form and every kernel, and so does every form every kernel.
MET = [
    (style, form, scheme, KERNELS[(i + j) % len(KERNELS)])
    for i, style in enumerate(STYLES)
    for j, (form, scheme) in enumerate(pairings())
]


def test_every_two_meet() -> None:
    assert {(style, kernel) for style, _, _, kernel in MET} == set(product(STYLES, KERNELS))
    assert {(form, scheme, kernel) for _, form, scheme, kernel in MET} == {
        (*pair, kernel) for pair, kernel in product(pairings(), KERNELS)
    }


@pytest.mark.parametrize(("style", "form", "scheme", "kernel"), MET)
def test_program_and_executor_agree(style: str, form: str, scheme: str | None, kernel: str) -> None:
    rows = list(check_cell(replace(CELL, form=form, scheme=scheme, kernel=kernel, **STYLES[style])))
    assert rows
    assert [str(row) for row in rows if row.status == "disagrees"] == []


@pytest.mark.parametrize("remat", ["full", "core_attn"])
@pytest.mark.parametrize("form", ["explicit", "absorbed", "laga"])
def test_recomputed_parts_agree(form: str, remat: str) -> None:
    """Products that run again are counted by `check_layer` only."""
    rows = [row for row in check_cell(replace(CELL, form=form, remat=remat)) if row.check != "product flops"]
    assert [str(row) for row in rows if row.status == "disagrees"] == []


def forward_peak(recording: Recording) -> int:
    return max(event.live_bytes for event in recording.events if event.phase == "forward")


def test_a_name_that_is_not_bound_again_costs_a_score_matrix() -> None:
    """Raw scores beside scaled ones, both with the probabilities at the output product; with a mask one more."""
    rebound = forward_peak(run_fake(replace(CELL, names="rebound")))
    assert forward_peak(run_fake(CELL)) == rebound + SQUARE
    masked = forward_peak(run_fake(replace(CELL, names="rebound", mask="tensor")))
    assert forward_peak(run_fake(replace(CELL, mask="tensor"))) == masked + 2 * SQUARE


def test_the_caller_holds_output_and_gradient_of_one_block_only() -> None:
    output = 2 * 512 * 7168
    one = run_fake(CELL)
    assert (
        sum(s.bytes for s in one.kept) - sum(s.bytes for s in run_fake(replace(CELL, names="rebound")).kept) == output
    )
    assert [s.bytes for s in one.alive_at_end if s.role == "intermediate"] == [output] * 3  # y, its gradient, x's
    two = run_fake(replace(CELL, layers=2))
    assert [s.bytes for s in two.alive_at_end if s.role == "intermediate"] == [output]


def test_an_idle_mlp_is_weights_and_nothing_else() -> None:
    """Three matrices of hidden x width, no gradient, no event."""
    without = replace(CELL, idle_mlp=0)
    at: dict[Spec, Evaluation] = {spec: predicted(spec) for spec in (CELL, without)}
    assert at[CELL].parameter_bytes() - at[without].parameter_bytes() == 2 * 3 * 7168 * 8192 == 352_321_536
    assert at[CELL].gradient_bytes() == at[without].gradient_bytes()
    assert run_fake(CELL).timeline() == run_fake(without).timeline()
    small = replace(CELL, dims=DIMS["tiny"], seq_len=16, sp=1, idle_mlp=8)
    held = sum(parameter.numel() for parameter in make_block(small).parameters())
    assert 2 * held == predicted(small).parameter_bytes()
