"""Layer programs against the torch executor: whole timelines, saved storages and collectives, to the byte."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("torch")

from mla_cost.checks.reference import DIMS, Spec, run_fake
from mla_cost.language.evaluate import Evaluation, account_of
from tests.choosing import pairwise
from tests.program_checks import check, program

TINY = replace(Spec(), dims=DIMS["tiny"], seq_len=16, ffn=48, vocab=64)


def degrees_of(sp: int, tp: int, micro_batch: int) -> dict[str, int]:
    return {"sp": sp, "tp": tp, "micro_batch": micro_batch}


ATTENTION = [
    {"form": "explicit"},
    {"form": "laga"},
    {"form": "absorbed"},
    {"form": "explicit", "scheme": "kv-gather"},
    {"form": "explicit", "kernel": "flash"},
    {"form": "absorbed", "kernel": "mem-efficient"},
]
AXES = ((1, 2), (1, 2, 4), (1, 2))  # sp, tp, micro_batch
DEGREES = [degrees_of(*each) for each in pairwise(*AXES)]


LAYERS = [(attention, degrees_of(*each)) for attention, *each in pairwise(ATTENTION, *AXES)]


@pytest.mark.parametrize(("attention", "degrees"), LAYERS, ids=str)
def test_a_dense_layer(attention: dict[str, Any], degrees: dict[str, Any]) -> None:
    check(replace(TINY, layer="dense", **attention, **degrees))


@pytest.mark.parametrize(("attention", "degrees"), LAYERS, ids=str)
def test_a_layer_whose_down_projections_are_sharded(attention: dict[str, Any], degrees: dict[str, Any]) -> None:
    check(replace(TINY, layer="dense", sharded_down=True, **attention, **degrees))
    no_rope = replace(TINY.dims, rope=0, q_lora_rank=None)
    check(replace(TINY, layer="dense", dims=no_rope, sharded_down=True, **attention, **degrees))


@pytest.mark.parametrize("degrees", DEGREES, ids=str)
@pytest.mark.parametrize("layer", ["embedding", "head"])
def test_the_two_ends(layer: str, degrees: dict[str, Any]) -> None:
    check(replace(TINY, layer=layer, **degrees))


@pytest.mark.parametrize("degrees", DEGREES, ids=str)
def test_losses_that_are_not_plain_torch(degrees: dict[str, Any]) -> None:
    """A loss in one chunk is compared event by event, one in several by what is kept and most alive."""
    check(replace(TINY, layer="head", loss="fused", **degrees))
    check(replace(TINY, layer="head", loss="chunked", loss_chunks=1, **degrees))
    for chunks in (2, 3, 16):
        spec = replace(TINY, layer="head", loss="chunked", loss_chunks=chunks, **degrees)
        recording, (run, base) = run_fake(spec), program(spec)
        found = Evaluation(account_of(run), base)
        assert (found.saved_bytes(), found.walk().peak.bytes) == (recording.saved_bytes, recording.peak_bytes)
        called = [call for call in recording.collectives if call.kind == "all_reduce"]
        reduced = [collective.payload.at(base) for collective in run.collectives if collective.kind == "all_reduce"]
        assert sum(reduced) == sum(call.payload_bytes for call in called)


def laid_out(sp: int, tp: int, experts: int) -> bool:
    """The executor lays expert ranks over whole groups."""
    return max(sp * tp, experts) % min(sp * tp, experts) == 0


SHARED = [
    (degrees_of(*each), ep, shared_ffn)
    for *each, ep, shared_ffn in pairwise(*AXES, (1, 2, 4), (0, 32))
    if laid_out(each[0], each[1], ep)
]
DIVIDED = [
    (degrees_of(*each), ep, etp)
    for *each, ep, etp in pairwise(*AXES, (1, 2), (2, 4))
    if laid_out(each[0], each[1], ep * etp)
]


@pytest.mark.parametrize(("degrees", "ep", "shared_ffn"), SHARED, ids=str)
def test_an_expert_layer(degrees: dict[str, Any], ep: int, shared_ffn: int) -> None:
    widths: dict[str, Any] = {"experts": 8, "experts_per_token": 2, "expert_ffn": 16, "shared_ffn": shared_ffn}
    check(replace(TINY, layer="moe", ep=ep, **widths, **degrees))


@pytest.mark.parametrize(("degrees", "ep", "etp"), DIVIDED, ids=str)
def test_an_expert_layer_whose_experts_are_divided(degrees: dict[str, Any], ep: int, etp: int) -> None:
    widths: dict[str, Any] = {"experts": 8, "experts_per_token": 2, "expert_ffn": 16, "shared_ffn": 32}
    check(replace(TINY, layer="moe", ep=ep, etp=etp, **widths, **degrees))


STYLES = [
    *({"micro_batch": 1}, {"dtype": "fp32"}, {"shared_ffn": 0, "tp": 2}, {"sp": 2, "tp": 2, "ep": 2, "etp": 2}),
    *({"seq_len": 1, "micro_batch": 1, "experts_per_token": 1}, {"remat": "moe", "sp": 2, "ep": 2}, {"remat": "full"}),
]


@pytest.mark.parametrize("asked", STYLES, ids=str)
@pytest.mark.parametrize("style", ["torchtitan", "transformers"])
def test_a_router_and_rows_of_experts_op_by_op(style: str, asked: dict[str, Any]) -> None:
    """Every allocation of real torch ops in order; the grouped products and exchanges are those of the fused style."""
    widths: dict[str, Any] = {"experts": 8, "experts_per_token": 2, "expert_ffn": 16, "shared_ffn": 32}
    check(replace(TINY, layer="moe", moe_style=style, **{"sp": 1, "micro_batch": 2, **widths, **asked}))


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
