"""Parts that run again in backward: the same numbers, what is kept instead, and what the peak does."""

from __future__ import annotations

from dataclasses import replace

import pytest

pytest.importorskip("torch")

import torch
from torch import Tensor

from mla_cost.checks.reference import DIMS, Recording, Spec, count_flops, initialise, record, run_fake
from mla_cost.checks.reference.layer import attention_of, make_inputs, make_layer
from mla_cost.checks.reference.ranks import RankRun, run_ranks

TINY = Spec(
    dims=DIMS["tiny"],
    seq_len=16,
    sp=1,
    micro_batch=2,
    dtype="fp32",
    mask="tensor",
    ffn=48,
    experts=8,
    experts_per_token=2,
    expert_ffn=16,
    shared_ffn=32,
)
V3 = Spec(seq_len=16384, sp=8)  # an attention block of DeepSeek-V3
TOKEN = 7168 * 2
DENSE = ("full", "core_attn", "mlp", "core_attn+mlp", "full+mlp")
MOE = ("full", "core_attn", "moe", "shared_experts", "core_attn+moe")
POLICIES = [
    *(replace(TINY, remat=remat) for remat in ("full", "core_attn")),
    *(replace(TINY, form="absorbed", kernel="mem-efficient", remat=remat) for remat in ("full", "core_attn")),
    *(replace(TINY, layer="dense", remat=remat) for remat in DENSE),
    *(replace(TINY, layer="moe", remat=remat) for remat in MOE),
    *(replace(TINY, layers=2, remat=remat) for remat in ("full", "core_attn")),
]
SHARDED = [
    *(replace(TINY, form=form, sp=2, remat="full") for form in ("explicit", "laga", "absorbed")),
    *(replace(TINY, layer="dense", sp=2, tp=2, remat=remat) for remat in ("full", "core_attn+mlp")),
    *(replace(TINY, layer="moe", tp=2, ep=2, remat=remat) for remat in ("full", "moe")),
]


def kept(spec: Spec) -> Spec:
    return replace(spec, remat="none")


def name(spec: Spec) -> str:
    return f"{spec.layer}-{spec.form}-{spec.kernel}-x{spec.layers}-{spec.remat}"


def numbers(spec: Spec) -> dict[str, Tensor]:
    """Output and every gradient."""
    layer = make_layer(spec)
    initialise(layer)
    generator = torch.Generator().manual_seed(1)
    (x,) = (torch.randn(leaf.shape, generator=generator).requires_grad_() for leaf in make_inputs(spec))
    out = layer(x)
    out.backward(torch.randn(out.shape, generator=generator))
    assert x.grad is not None
    found = {"output": out.detach(), "input": x.grad}
    for parameter_name, parameter in layer.named_parameters():
        assert parameter.grad is not None, parameter_name
        found[parameter_name] = parameter.grad
    return found


@pytest.mark.parametrize("spec", POLICIES, ids=name)
def test_the_numbers_are_the_same_bit_for_bit(spec: Spec) -> None:
    expected, found = numbers(kept(spec)), numbers(spec)
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[each], expected[each]) for each in expected)


@pytest.mark.parametrize("spec", POLICIES, ids=name)
def test_fake_and_real_tensors_have_one_timeline(spec: Spec) -> None:
    layer = make_layer(spec)
    initialise(layer)
    fake = run_fake(spec)
    assert fake.timeline() == record(layer, make_inputs(spec)).timeline()
    assert fake.saved_bytes < run_fake(kept(spec)).saved_bytes


@pytest.fixture(scope="module")
def runs() -> dict[Spec, RankRun]:
    specs = [*SHARDED, *dict.fromkeys(map(kept, SHARDED))]
    return dict(zip(specs, run_ranks(specs), strict=True))


@pytest.mark.xdist_group("ranks")
@pytest.mark.parametrize("spec", SHARDED, ids=name)
class TestRanks:
    def test_ranks_have_the_same_numbers(self, spec: Spec, runs: dict[Spec, RankRun]) -> None:
        assert runs[spec].identical(runs[kept(spec)])

    def test_every_rank_calls_what_the_fake_groups_saw(self, spec: Spec, runs: dict[Spec, RankRun]) -> None:
        """In kind and phase: how many rows go to an expert is even only where nothing is really routed."""
        expected = [(call.kind, call.axis, call.phase) for call in run_fake(spec).collectives]
        for calls in runs[spec].collectives:
            assert [(call.kind, call.axis, call.phase) for call in calls] == expected
        assert ("recompute" in {phase for _, _, phase in expected}) == (spec.remat != "core_attn+mlp")


# What is kept: the arguments, and nothing of the part.


def saved(spec: Spec, remat: str = "none") -> int:
    return run_fake(replace(spec, remat=remat)).saved_bytes


@pytest.mark.parametrize(
    ("form", "kernel", "none", "core_attn"),
    [
        ("explicit", "eager", 8_971_894_784, 381_960_192),
        ("laga", "eager", 9_055_780_864, 465_846_272),
        ("absorbed", "eager", 17_981_259_776, 801_390_592),
        ("explicit", "mem-efficient", 450_117_632, 381_960_192),
        ("laga", "mem-efficient", 534_003_712, 465_846_272),
        ("absorbed", "mem-efficient", 1_085_554_688, 801_390_592),
    ],
)
def test_deepseek_v3_saves_to_the_byte(form: str, kernel: str, none: int, core_attn: int) -> None:
    spec = replace(V3, form=form, kernel=kernel)
    assert saved(spec) == none
    assert saved(spec, "core_attn") == core_attn
    assert saved(spec, "full") == 2048 * TOKEN  # the input alone


def test_core_attn_under_a_fused_kernel_drops_the_statistics_and_an_output_that_is_exchanged() -> None:
    """At sp 1 the output projection keeps the kernel's output; at sp > 1 it keeps what the exchange made of it."""
    alone = replace(V3, kernel="flash", seq_len=4096, sp=1)
    assert saved(alone) - saved(alone, "core_attn") == 128 * 4096 * 4
    shared = replace(V3, kernel="flash")
    assert saved(shared) - saved(shared, "core_attn") == 16 * 16384 * 4 + 16384 * 16 * 128 * 2


def test_core_attn_drops_the_copies_of_a_shared_key_and_keeps_the_key() -> None:
    spec = replace(V3, form="absorbed", kernel="mem-efficient", seq_len=4096, sp=1)
    assert saved(spec) - saved(spec, "core_attn") == 128 * 4096 * 4 + (128 - 1) * 4096 * 576 * 2


def test_a_dense_layer_keeps_the_arguments_of_its_parts() -> None:
    spec = replace(V3, layer="dense", kernel="flash", seq_len=4096, sp=1)
    mlp = 4 * 4096 * 18432 * 2  # gate and up, silu's result, the product
    statistics = 128 * 4096 * 4
    assert saved(spec, "full") == 4096 * TOKEN
    assert saved(spec) - saved(spec, "mlp") == mlp
    assert saved(spec) - saved(spec, "core_attn") == statistics
    assert saved(spec) - saved(spec, "core_attn+mlp") == mlp + statistics


def test_inside_a_part_nothing_else_is_wrapped() -> None:
    dense, moe = replace(TINY, layer="dense"), replace(TINY, layer="moe")
    full, both = (run_fake(replace(dense, remat=remat)) for remat in ("full", "core_attn+full+mlp"))
    assert full.events == both.events
    assert attention_of(replace(dense, remat="full+core_attn")).remat == "none"
    assert attention_of(replace(dense, remat="mlp+core_attn")).remat == "core_attn"
    experts, all_experts = (run_fake(replace(moe, remat=remat)) for remat in ("moe", "moe+shared_experts"))
    assert experts.events == all_experts.events


def test_a_stack_keeps_one_input_per_layer() -> None:
    one, three = (run_fake(replace(TINY, layers=layers, remat="full")) for layers in (1, 3))
    assert three.saved_bytes == 3 * one.saved_bytes


# The peak.


def peak(spec: Spec, remat: str = "none") -> int:
    return run_fake(replace(spec, remat=remat)).peak_bytes


@pytest.mark.parametrize(
    ("form", "kernel", "none", "core_attn"),
    [
        ("explicit", "eager", 26_084_655_104, 26_151_763_968),
        ("laga", "eager", 26_101_432_320, 26_235_650_048),
        ("explicit", "mem-efficient", 718_553_088, 718_553_088),
        ("laga", "mem-efficient", 802_439_168, 802_439_168),
        ("absorbed", "mem-efficient", 2_161_393_664, 2_180_268_032),
    ],
)
def test_full_leaves_a_peak_in_backward_as_it_is(form: str, kernel: str, none: int, core_attn: int) -> None:
    """One block alone; `core_attn` raises the peak by the arguments that would have died before it."""
    spec = replace(V3, form=form, kernel=kernel)
    assert run_fake(spec).peak.phase == "backward"
    assert peak(spec) == peak(spec, "full") == none
    assert peak(spec, "core_attn") == core_attn


def test_full_meets_a_peak_of_forward_again_with_the_gradient_handed_in() -> None:
    """Absorbed eager peaks where einsum has copied the probabilities, which backward has freed by its own peak."""
    spec = replace(V3, form="absorbed")
    before, after = run_fake(spec), run_fake(replace(spec, remat="full"))
    assert (before.peak.phase, before.peak.op) == ("forward", "bmm")
    assert (after.peak.phase, after.peak.op) == ("backward", "bmm")
    assert after.peak_bytes - before.peak_bytes == 2048 * TOKEN
    assert peak(spec, "core_attn") - before.peak_bytes == 16_515_072


def test_in_a_stack_full_lowers_the_peak() -> None:
    spec = replace(V3, kernel="mem-efficient", layers=4)
    assert peak(spec, "full") < peak(spec)


# Running again.


def phases(recording: Recording, kind: str) -> list[str]:
    return [call.phase for call in recording.collectives if call.kind == kind]


def test_collectives_inside_the_part_are_called_again() -> None:
    full, core = (run_fake(replace(V3, form="laga", remat=remat)) for remat in ("full", "core_attn"))
    assert phases(full, "all_gather") == ["forward", "recompute"]
    assert phases(full, "all_to_all") == [*["forward"] * 2, *["recompute"] * 2, *["backward"] * 2]
    assert "recompute" not in {call.phase for call in core.collectives}


def test_running_again_stops_before_the_last_product() -> None:
    """Its operands are noted before it runs, and nobody needs its result."""
    spec = replace(V3, layer="dense", kernel="flash", sp=1, seq_len=4096)
    up = 2 * 4096 * 7168 * 2 * 18432
    extra = {
        remat: count_flops(replace(spec, remat=remat))["backward"]["mm"] - count_flops(spec)["backward"]["mm"]
        for remat in ("mlp", "full")
    }
    down = 2 * 4096 * 18432 * 7168
    assert extra == {"mlp": up, "full": count_flops(spec)["forward"]["mm"] - down}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"remat": "mla_up_proj"}, "remat 'mla_up_proj' is not one of none, full, core_attn, mlp, moe, shared_experts"),
        ({"remat": ""}, "remat '' is not one of none"),
        ({"remat": "none+full"}, r"remat 'none\+full': none stands alone"),
        ({"remat": "mlp"}, "remat mlp is a part of dense: layer attention has none"),
        ({"remat": "full", "layer": "head"}, "remat full is a part of attention, dense, moe: layer head has none"),
        ({"remat": "mlp", "layer": "moe"}, "remat mlp is a part of dense: layer moe has none"),
        ({"remat": "core_attn+moe", "layer": "dense"}, "remat moe is a part of moe: layer dense has none"),
        ({"remat": "shared_experts", "layer": "moe", "shared_ffn": 0}, "needs shared experts: shared_ffn is 0"),
    ],
)
def test_what_has_no_such_part_is_refused_by_name(change: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(TINY, **change)  # type: ignore[arg-type]
