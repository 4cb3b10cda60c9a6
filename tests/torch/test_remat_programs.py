"""Recomputation in programs against the torch executor: timelines, saved storages and collectives, to the byte."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("torch")

from mla_cost.checks.reference import DIMS, Spec
from tests.choosing import pairwise
from tests.program_checks import check

TINY = replace(Spec(), dims=DIMS["tiny"], seq_len=16, ffn=48)
ATTENTION: list[dict[str, Any]] = [
    {"form": form, "kernel": kernel}
    for form in ("explicit", "laga", "absorbed")
    for kernel in ("eager", "flash", "mem-efficient")
    if (form, kernel) != ("absorbed", "flash")
]


def cells(layer: str, policies: tuple[str, ...], second: str) -> list[Any]:
    """Every two of an attention, a policy, sp and a second degree together."""
    return [
        pytest.param(
            replace(TINY, layer=layer, remat=remat, sp=sp, **attention, **{second: degree}),
            id="-".join(map(str, (*attention.values(), sp, degree, remat))),
        )
        for attention, remat, sp, degree in pairwise(ATTENTION, policies, (1, 2), (1, 2))
    ]


@pytest.mark.parametrize("spec", cells("attention", ("full", "core_attn"), "micro_batch"))
def test_an_attention_block(spec: Spec) -> None:
    check(spec)


@pytest.mark.parametrize("spec", cells("dense", ("full", "core_attn", "mlp", "core_attn+mlp"), "tp"))
def test_a_dense_layer(spec: Spec) -> None:
    check(spec)
