"""Recomputation in programs against the torch executor: timelines, saved storages and collectives, to the byte."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("torch")

from mla_cost.cost import Key, timeline
from mla_cost.dims import base_values, facts_of
from mla_cost.engine import Timeline
from mla_cost.reference import DIMS, Spec, run_fake
from mla_cost.schemes import SCHEMES

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


def program(spec: Spec) -> tuple[Timeline, dict[str, int]]:
    """The model's timeline of a spec, and the values of its symbols."""
    dims, (form, scheme) = spec.dims, spec.pair
    values = {
        "S": spec.seq_len,
        "P": spec.sp,
        "t": spec.tp,
        "b": spec.micro_batch,
        "n": dims.heads // spec.tp,
        "h": dims.hidden,
        "d_q": dims.q_lora_rank or 0,
        "d_c": dims.kv_lora_rank,
        "k": dims.nope,
        "r": dims.rope,
        "v": dims.value,
        "f": spec.ffn // spec.tp,
        "V": spec.vocab // spec.tp,
    }
    divided = SCHEMES[scheme].divides_heads
    base = base_values(values, divided)
    key = Key(form, scheme, spec.kernel, facts_of(base, divided), spec.dtype, layer=spec.layer, remat=spec.remat)
    return timeline(key), base


def sizes(run: Timeline, base: dict[str, int]) -> list[int]:
    """Signed bytes of every allocation and free; frees with no allocation between them in rising order, as recorded."""
    found: list[int] = []
    freed: list[int] = []
    for event in run.events:
        if event.allocation is None:
            continue
        amount = event.allocation.size.at(base)
        if event.what == "free":
            freed.append(-amount)
            continue
        found += [*sorted(freed), amount]
        freed = []
    return found + sorted(freed)


def check(spec: Spec) -> None:
    recording = run_fake(spec)
    run, base = program(spec)
    assert sizes(run, base) == recording.timeline()
    assert sorted(a.size.at(base) for a in run.allocations if a.saved) == sorted(s.bytes for s in recording.saved)
    called = [(c.kind, c.axis, c.phase, c.payload_bytes) for c in recording.collectives]
    assert [(c.kind, c.axis, c.phase, c.payload.at(base)) for c in run.collectives] == called


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
