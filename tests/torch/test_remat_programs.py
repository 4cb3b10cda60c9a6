"""Recomputation in programs against the torch executor: timelines, saved storages and collectives, to the byte."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("torch")

from mla_cost.checks.reference import DIMS, Spec
from tests.program_checks import check

TINY = replace(Spec(), dims=DIMS["tiny"], seq_len=16, ffn=48)
ATTENTION: list[dict[str, Any]] = [
    {"form": form, "kernel": kernel}
    for form in ("explicit", "laga", "absorbed")
    for kernel in ("eager", "flash", "mem-efficient")
    if (form, kernel) != ("absorbed", "flash")
]


def cells(layer: str, policies: tuple[str, ...], degrees: list[dict[str, Any]]) -> list[Any]:
    return [
        pytest.param(
            replace(TINY, layer=layer, remat=remat, **attention, **degree),
            id="-".join(map(str, (*attention.values(), *degree.values(), remat))),
        )
        for attention in ATTENTION
        for degree in degrees
        for remat in policies
    ]


@pytest.mark.parametrize(
    "spec", cells("attention", ("full", "core_attn"), [{"sp": sp, "micro_batch": b} for sp in (1, 2) for b in (1, 2)])
)
def test_an_attention_block(spec: Spec) -> None:
    check(spec)


@pytest.mark.parametrize(
    "spec",
    cells(
        "dense", ("full", "core_attn", "mlp", "core_attn+mlp"), [{"sp": sp, "tp": tp} for sp in (1, 2) for tp in (1, 2)]
    ),
)
def test_a_dense_layer(spec: Spec) -> None:
    check(spec)
