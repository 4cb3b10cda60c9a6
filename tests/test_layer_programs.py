"""Layer programs against the torch executor: whole timelines, saved storages and collectives, to the byte."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("torch")

from mla_cost.cost import Key, timeline
from mla_cost.dims import base_values, facts_of
from mla_cost.engine import Timeline
from mla_cost.reference import DIMS, Spec, run_fake
from mla_cost.reference.measure import Recording
from mla_cost.schemes import SCHEMES

TINY = replace(Spec(), dims=DIMS["tiny"], seq_len=16, ffn=48, vocab=64)
ATTENTION = [
    {"form": "explicit"},
    {"form": "laga"},
    {"form": "absorbed"},
    {"form": "explicit", "scheme": "kv-gather"},
    {"form": "explicit", "kernel": "flash"},
    {"form": "absorbed", "kernel": "mem-efficient"},
]
DEGREES = [{"sp": sp, "tp": tp, "micro_batch": b} for sp in (1, 2) for tp in (1, 2, 4) for b in (1, 2)]


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
        **experts(spec),
    }
    divided = SCHEMES[scheme].divides_heads
    base = base_values(values, divided)
    return timeline(Key(form, scheme, spec.kernel, facts_of(base, divided), spec.dtype, layer=spec.layer)), base


def experts(spec: Spec) -> dict[str, int]:
    """Values of the symbols that only an expert layer has."""
    if spec.layer != "moe":
        return {}
    rows = spec.seq_len // spec.sp // spec.tp * spec.micro_batch * spec.experts_per_token
    return {
        "E": spec.ep,
        "e": spec.experts,
        "c": spec.experts // spec.ep,
        "K": spec.experts_per_token,
        "R": rows,
        "w": -(-rows // spec.ep),
        "g": spec.expert_ffn,
        "m": spec.shared_ffn // spec.tp,
    }


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


def collectives(recording: Recording) -> list[tuple[str, str, str, int]]:
    return [(c.kind, c.axis, c.phase, c.payload_bytes) for c in recording.collectives]


def check(spec: Spec) -> None:
    recording = run_fake(spec)
    run, base = program(spec)
    assert sizes(run, base) == recording.timeline()
    assert sorted(a.size.at(base) for a in run.allocations if a.saved) == sorted(s.bytes for s in recording.saved)
    assert [(c.kind, c.axis, c.phase, c.payload.at(base)) for c in run.collectives] == collectives(recording)


@pytest.mark.parametrize("degrees", DEGREES, ids=str)
@pytest.mark.parametrize("attention", ATTENTION, ids=str)
def test_a_dense_layer(attention: dict[str, Any], degrees: dict[str, Any]) -> None:
    check(replace(TINY, layer="dense", **attention, **degrees))


@pytest.mark.parametrize("degrees", DEGREES, ids=str)
@pytest.mark.parametrize("layer", ["embedding", "head"])
def test_the_two_ends(layer: str, degrees: dict[str, Any]) -> None:
    check(replace(TINY, layer=layer, **degrees))


@pytest.mark.parametrize("shared_ffn", [0, 32])
@pytest.mark.parametrize("ep", [1, 2, 4])
@pytest.mark.parametrize("degrees", DEGREES, ids=str)
def test_an_expert_layer(degrees: dict[str, Any], ep: int, shared_ffn: int) -> None:
    ranks = degrees["sp"] * degrees["tp"]
    if max(ranks, ep) % min(ranks, ep):
        pytest.skip("the executor lays expert ranks over whole groups")
    widths: dict[str, Any] = {"experts": 8, "experts_per_token": 2, "expert_ffn": 16, "shared_ffn": shared_ffn}
    check(replace(TINY, layer="moe", ep=ep, **widths, **degrees))


@pytest.mark.parametrize(
    ("tp", "ep", "saved", "peak"),
    [
        (1, 1, 2_624_782_336, 3_145_007_104),
        (1, 8, 2_624_782_336, 3_145_007_104),
        (2, 8, 1_417_527_296, 1_618_919_424),
    ],
)
def test_an_expert_deepseek_layer_of_4096_tokens(tp: int, ep: int, saved: int, peak: int) -> None:
    """The executor's figures, recorded on fake tensors before the program was compared."""
    spec = Spec(layer="moe", kernel="flash", seq_len=4096, sp=1, tp=tp, ep=ep)
    recording = run_fake(spec)
    assert (recording.saved_bytes, recording.peak_bytes) == (saved, peak)
    check(spec)


@pytest.mark.parametrize(("tp", "saved", "peak"), [(1, 1_680_408_576, 2_041_118_720), (2, 915_980_288, 1_096_335_360)])
def test_a_dense_deepseek_layer_of_4096_tokens(tp: int, saved: int, peak: int) -> None:
    """The executor's figures, recorded on fake tensors before the program was run."""
    recording = run_fake(Spec(layer="dense", kernel="flash", seq_len=4096, sp=1, tp=tp))
    assert (recording.saved_bytes, recording.peak_bytes) == (saved, peak)
    check(Spec(layer="dense", kernel="flash", seq_len=4096, sp=1, tp=tp))
