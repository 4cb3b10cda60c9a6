"""The verdict: every status, arithmetic that adds up, thresholds from both sides, and kernels with their sources."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import yaml

import mla_cost
from mla_cost.declared.kernels import KERNELS
from mla_cost.results import Result, Verdict


def usual(question: Mapping[str, Any]) -> dict[str, Any]:
    """Of blocks these are about, op by op; whole models have their own defaults."""
    return {} if question.get("scope") == "model" else {"scope": "attention", "kernel": "eager"}


GIB = 2**30
TRIPLE = ("explicit", "absorbed", "laga")


def result(**question: Any) -> Result:
    (found,) = mla_cost.plan(**{**usual(question), "form": "laga", "device": "910b-64gb", **question}).results
    return found


def verdict(**question: Any) -> Verdict:
    found = result(**question).verdict
    assert found is not None
    return found


def required(**question: Any) -> int:
    amount = verdict(**question).required_bytes
    assert amount is not None
    return amount


def usable(**question: Any) -> int:
    amount = verdict(**question).usable_bytes
    assert amount is not None
    return amount


# ---- statuses and thresholds


@pytest.mark.parametrize(
    ("spare", "status"),
    [
        (lambda usable: usable // 2, "fits"),
        (lambda usable: -(-usable // 20), "fits"),  # 5 % is not under 5 %
        (lambda usable: -(-usable // 20) - 1, "tight"),
        (lambda _: 1, "tight"),
        (lambda _: 0, "tight"),
        (lambda _: -1, "oom"),
        (lambda _: -GIB, "oom"),
    ],
)
@pytest.mark.parametrize("device", ["910b-64gb", "a100-80gb"])
def test_the_threshold_from_both_sides(device, spare, status):
    available, block = usable(device=device, seq_len=1024), required(device=device, seq_len=1024)
    wanted = spare(available)
    found = verdict(device=device, seq_len=1024, other_memory=available - block - wanted)
    assert found.status == status
    assert found.headroom_bytes == wanted


def test_5_percent_exactly_is_not_tight():
    reserve = verdict().basis[-1]
    spare = usable() % 20
    question = {"reserve": {reserve.name.removeprefix("reserve: "): spare - reserve.bytes}}
    available = usable(**question)
    assert available % 20 == 0
    statuses = [
        verdict(**question, other_memory=available - available // 20 - required() + more).status for more in (0, 1)
    ]
    assert statuses == ["fits", "tight"]


def test_what_the_verdict_says():
    room = usable() - required()
    assert verdict().reason == f"one block fits, {room / GIB:.1f} GiB left"
    assert verdict(other_memory=room - 300 * 2**20).reason == "one block fits, only 300.0 MiB left"
    assert verdict(other_memory=room + 3 * GIB).reason == "one block 3.0 GiB short"
    assert verdict(layers=2, other_memory=GIB).reason.startswith("2 blocks fit, ")
    assert verdict(layers=61).reason.startswith("61 blocks ")


def test_illegal_has_no_numbers_and_a_way_out():
    found = result(sp=24)
    assert found.verdict is not None
    assert found.verdict.status == "illegal"
    assert found.verdict.required_bytes is found.verdict.usable_bytes is found.verdict.headroom_bytes is None
    assert "sp 24 does not divide seq_len 16384" in found.verdict.reason
    assert "nearest sp below is 16" in found.verdict.reason
    assert found.memory.saved_bytes is found.memory.peak_bytes is found.flops.forward.model is None
    assert not found.memory.tensors
    assert not found.communication.collectives
    heads = result(sp=16, dims={"heads": 24})
    assert heads.verdict is not None
    assert "sp 16 does not divide 24 heads; the nearest sp below is 8" in heads.verdict.reason


def test_an_illegal_row_does_not_take_the_others_with_it():
    found = mla_cost.plan(kernel="flash", device="a100-80gb", value_padding="qk", scope="attention")
    assert {row.form: row.verdict.status for row in found.results if row.verdict} == {
        "explicit": "fits",
        "absorbed": "illegal",
        "laga": "fits",
    }


def test_unsupported_has_numbers_and_names_what_it_looked_at():
    """192-wide keys with 128-wide values: no FlashAttention-2 on the A100 trains them unpadded."""
    found = result(kernel="flash", device="a100-80gb")
    assert found.verdict is not None
    assert found.verdict.status == "unsupported"
    assert found.memory.saved_bytes
    for word in ("192/128-wide", "sm80", "FlashAttention-2", "flash_api.cpp", "cuDNN", "fused_attn.cpp"):
        assert word in found.verdict.reason
    assert "flash with value_padding qk (FlashAttention-2)" in found.verdict.reason
    assert verdict(kernel="flash", device="a100-80gb", value_padding="qk").status == "fits"


def test_unsupported_where_the_kernel_does_not_exist():
    reason = verdict(kernel="flash", device="910b-64gb").reason
    assert "flash does not exist on 910b-64gb" in reason
    assert "npu-fusion" in reason
    assert verdict(kernel="npu-fusion", device="910b-64gb").status == "fits"
    assert verdict(kernel="npu-fusion", device="a100-80gb").status == "unsupported"


# ---- arithmetic


@pytest.mark.parametrize("device", ["910b-64gb", "910b4-32gb", "a100-80gb", "h100-80gb", "mi300x"])
@pytest.mark.parametrize("form", TRIPLE)
def test_the_basis_adds_up(device, form):
    found = verdict(device=device, form=form, other_memory="3GiB")
    items = {item.name: item.bytes for item in found.basis}
    reserve = [amount for name, amount in items.items() if name.startswith("reserve: ")]
    assert all(amount <= 0 for amount in reserve)
    assert found.usable_bytes == items["visible memory"] + sum(reserve)
    assert found.required_bytes == items["allocated peak"] + items["other memory"]
    assert items["other memory"] == 3 * GIB
    assert found.headroom_bytes == (found.usable_bytes or 0) - (found.required_bytes or 0)
    assert all(item.source for item in found.basis)


@pytest.mark.parametrize("device", ["910b-64gb", "a100-80gb"])
@pytest.mark.parametrize("form", TRIPLE)
@pytest.mark.parametrize("layers", [1, 3])
def test_the_breakdown_adds_up(device, form, layers):
    memory = result(device=device, form=form, layers=layers).memory
    assert sum(part.bytes for part in memory.breakdown) == memory.allocated_peak_bytes


def test_the_device_file_is_what_is_used(checkout):
    facts = yaml.safe_load((checkout / "configs/devices/910b-64gb.yaml").read_text())
    reserve = {item["name"]: item["bytes"] for item in facts["reserve"]}
    assert usable() == facts["framework_visible_bytes"]["value"] - sum(reserve.values())
    assert 2 * 200 * 2**20 in reserve.values()  # one HCCL communicator takes 2 x 200 MiB
    assert 60.96 * GIB <= facts["framework_visible_bytes"]["value"] <= 60.975 * GIB


def test_one_rank_has_no_communicator():
    alone, several = usable(sp=1, seq_len=1024), usable(sp=2, seq_len=1024)
    assert alone - several == 2 * 200 * 2**20


@pytest.mark.parametrize("item", ["runtime context", "HCCL buffers"])
def test_a_reserve_item_can_be_set(item):
    before = {row.name: row for row in verdict().basis}
    found = verdict(reserve={item: "1GiB"})
    after = {row.name: row for row in found.basis}
    name = f"reserve: {item}"
    assert after[name].bytes == -GIB
    assert after[name].source == "set with --reserve"
    assert before[name].source != after[name].source
    assert (found.usable_bytes or 0) - usable() == -GIB - before[name].bytes
    assert usable(reserve={item: 0}) == usable() - before[name].bytes


LITE: dict[str, Any] = {"scope": "model", "model": "moonlight", "device": "h100-80gb", "form": "explicit", "sp": 1}
LITE |= {"seq_len": 4096, "ep": 8, "dp": 8}


@pytest.mark.parametrize("profile", ["reference", "megatron"])
def test_the_bucket_of_zero_is_reserved(profile):
    """DeepSpeed's default bucket: 500,000,000 elements as wide as the weights; --reserve sets another.

    ZeRO-1 that adds bf16 gradients up in fp32 runs as BF16_Optimizer, which has none.
    """
    found = {
        sharding: mla_cost.plan(**LITE, profile=profile, sharding=sharding).results[0]
        for sharding in ("zero1", "zero2")
    }
    assert found["zero2"].verdict is not None
    assert found["zero1"].verdict is not None
    held = {item.name: item for item in found["zero2"].verdict.basis}
    bucket = held["reserve: ZeRO bucket"]
    assert bucket.bytes == -500_000_000 * 2
    assert "stage_1_and_2.py" in bucket.source
    assert (found["zero1"].verdict.usable_bytes or 0) - (found["zero2"].verdict.usable_bytes or 0) == 1_000_000_000
    assert all(item.name != "reserve: ZeRO bucket" for item in found["zero1"].verdict.basis)
    alike = mla_cost.plan(**LITE, profile=profile, sharding="zero1", gradient_dtype="bf16").results[0].verdict
    assert alike is not None
    assert {item.name: item.bytes for item in alike.basis}["reserve: ZeRO bucket"] == -500_000_000 * 2
    own = mla_cost.plan(**LITE, sharding="zero2", reserve={"ZeRO bucket": "1GiB"}).results[0].verdict
    assert own is not None
    assert ("reserve: ZeRO bucket", -GIB, "set with --reserve", None, None) in own.basis
    with pytest.raises(mla_cost.InputError, match="no reserve item"):
        mla_cost.plan(**LITE, reserve={"ZeRO bucket": "1GiB"})


def test_the_bucket_of_fp32_weights_is_twice_as_large():
    found = mla_cost.plan(**LITE, sharding="zero2", dtype="fp32", kernel="eager").results[0].verdict
    assert found is not None
    assert {item.name: item.bytes for item in found.basis}["reserve: ZeRO bucket"] == -500_000_000 * 4


def test_other_memory_is_named_also_when_it_is_nothing():
    (other,) = [item for item in verdict().basis if item.name == "other memory"]
    assert (other.bytes, other.source) == (0, "set with --other-memory")


# ---- numbers of DeepSeek-V3, typed out


def test_fused_options_say_what_a_block_saves():
    """Explicit on the A100: FlashAttention-2 with V padded to 192, or memory-efficient attention unpadded."""
    s, every, heads, hidden = 2048, 16384, 16, 7168
    around = 2 * s * (hidden + 2 * 1536 + (512 + 64) + 512 + 128 * 128) + 2 * 4 * s
    lse = 4 * every * heads
    padded = around + lse + 2 * every * heads * (192 + 192 + 192 + 192)
    unpadded = around + lse + 2 * every * heads * (192 + 192 + 128 + 128)
    options = {o.kernel: o for o in verdict(form="explicit", device="a100-80gb").fused_kernels}
    assert options.keys() == {"flash", "mem-efficient"}
    assert (options["flash"].saved_bytes, options["flash"].value_padding) == (padded, "qk")
    assert (options["mem-efficient"].saved_bytes, options["mem-efficient"].value_padding) == (unpadded, "none")


@pytest.mark.parametrize("device", ["910b-64gb", "a100-80gb", "h100-80gb", "b200-180gb", "mi300x"])
@pytest.mark.parametrize("form", TRIPLE)
def test_fused_options_are_fused_sourced_and_true(device, form):
    found = verdict(device=device, form=form)
    # on the MI300X AOTriton ends at 512, and an absorbed key is 512 + 64 wide
    assert bool(found.fused_kernels) == ((device, form) != ("mi300x", "absorbed"))
    for option in found.fused_kernels:
        assert KERNELS[option.kernel].fused
        assert option.source
        under = result(device=device, form=form, kernel=option.kernel, value_padding=option.value_padding)
        assert under.memory.saved_bytes == option.saved_bytes
        assert under.verdict is not None
        assert under.verdict.status == "fits"


def test_no_flash_trains_the_absorbed_form():
    for device in ("a100-80gb", "h100-80gb"):
        assert "flash" not in {o.kernel for o in verdict(form="absorbed", device=device).fused_kernels}


def test_no_fused_kernel_is_said_in_words():
    assert "mi300x absorbed none that we know of" in repr(mla_cost.plan(device="mi300x", scope="attention"))


@pytest.mark.parametrize(
    ("device", "dtype", "kernel"),
    [
        ("h100-80gb", "bf16", "flash"),
        ("h100-80gb", "fp16", "flash"),
        ("h100-80gb", "fp32", "mem-efficient"),  # the flash implementations take fp16 and bf16
        ("mi300x", "fp32", "mem-efficient"),
        ("910b-64gb", "fp32", "npu-fusion"),
    ],
)
@pytest.mark.parametrize("scope", ["attention", "model"])
def test_auto_is_a_kernel_that_takes_the_dtype(device, dtype, kernel, scope):
    asked: dict[str, Any] = {"model": "moonlight", "form": "explicit", "sp": 1, "seq_len": 4096, "kernel": "auto"}
    assert mla_cost.plan(**asked, scope=scope, device=device, dtype=dtype).results[0].kernel == kernel


@pytest.mark.parametrize("scope", ["attention", "model"])
def test_a_dtype_that_no_implementation_takes_is_unsupported_by_name(scope):
    asked: dict[str, Any] = {"model": "moonlight", "form": "explicit", "sp": 1, "seq_len": 4096, "device": "h100-80gb"}
    found = mla_cost.plan(**asked, scope=scope, kernel="flash", dtype="fp32").results[0].verdict
    assert found is not None
    assert found.status == "unsupported"
    assert found.reason.startswith("no flash kernel takes fp32 on sm90, only bf16 and fp16; use dtype bf16; looked at ")
    assert "flash_api.cpp" in found.reason


def test_flashmla_trains_bf16_alone():
    (limit,) = [limit for limit in KERNELS["flash"].limits if limit.implementation.startswith("FlashMLA")]
    assert [limit.trains("sm100", 192, 128, dtype) for dtype in ("bf16", "fp16", "fp32")] == [True, False, False]


def test_unaligned_heads_are_named_by_their_widths():
    found = verdict(device="a100-80gb", form="laga", kernel="mem-efficient", dims={"qk_nope_head_dim": 130})
    assert found.status == "unsupported"
    assert "194/128-wide" in found.reason


MODEL: dict[str, Any] = {"scope": "model", "model": "moonlight-16b-a3b", "seq_len": 8192, "sp": 1, "dp": 8, "ep": 8}


@pytest.mark.parametrize("kernel", ["auto", "eager"])
def test_that_a_form_has_no_fused_kernel_comes_first(kernel):
    """AOTriton ends at 512-wide heads on the MI300X, where an absorbed key is 512 + 64 wide."""
    first = "no fused kernel that we know of trains absorbed on mi300x; the worst stage "
    found = verdict(**MODEL, form="absorbed", device="mi300x", kernel=kernel)
    assert found.status == "oom"
    assert found.reason.startswith(first)
    for other in ({"form": "explicit", "device": "mi300x"}, {"form": "absorbed", "device": "h100-80gb"}):
        assert "no fused kernel" not in verdict(**MODEL, **other, kernel=kernel).reason


def test_unsupported_at_the_model_scope_names_the_way_out():
    found = verdict(**MODEL, form="explicit", device="910b-64gb", kernel="flash")
    assert found.status == "unsupported"
    assert found.reason == (
        "flash does not exist on 910b-64gb (910b); "
        "what trains it here: npu-fusion with value_padding qk (npu_fusion_attention)"
    )
    assert verdict(**MODEL, form="explicit", device="910b-64gb", kernel="npu-fusion").status == "oom"


def test_a_profile_without_the_kernel_that_trains_names_the_one_with_it():
    found = verdict(**MODEL, form="explicit", device="910b-64gb", profile="megatron")
    assert found.status == "unsupported"
    assert found.reason.endswith(
        "profile megatron runs flash only; on 910b-64gb use profile reference, where this trains it: "
        "npu-fusion with value_padding qk (npu_fusion_attention)"
    )


SCORES = 2 * 16384 * 16384 * 16  # one S x S tensor of 16 heads in bf16


@pytest.mark.parametrize("form", TRIPLE)
def test_the_a100_pays_for_gradient_times_output(form):
    """Against the same block where only a strided gradient is copied: one S x S more, and the plan says why."""
    found = result(form=form, device="a100-80gb")
    ascend = result(form=form, device="910b-64gb")
    assert found.memory.kernel_workspace_bytes == (2 * SCORES if form == "absorbed" else SCORES)
    assert ascend.memory.kernel_workspace_bytes == (SCORES if form == "absorbed" else 0)
    plan = mla_cost.plan(form=form, scope="attention")
    assert "gradient x output (one S x S)" in plan.inputs["devices"]["a100-80gb"]["softmax_workspace"]
    assert "read in source" in plan.inputs["devices"]["a100-80gb"]["softmax_workspace"]
    assert "gradient x output" not in plan.inputs["devices"]["910b-64gb"]["softmax_workspace"]
    assert "inferred" in plan.inputs["devices"]["910b-64gb"]["softmax_workspace"]
    assert "gradient x output (one S x S)" in repr(plan)


@pytest.mark.parametrize("way", [{"attention_layout": "bnsd"}, {"kernel": "eager-bmm"}, {"sp": 128}])
def test_the_workspace_of_the_absorbed_form_can_vanish(way):
    assert result(form="absorbed", **way).memory.kernel_workspace_bytes == 0
    assert result(form="absorbed").memory.kernel_workspace_bytes == SCORES


WINDOWS = {  # form: saved, peak, allocated peak on the 910B, in GB
    "explicit": ((8.94, 9.01), (25.9, 26.5), (26.5, 27.6)),
    "absorbed": ((17.94, 18.02), (26.5, 27.2), (35.1, 37.0)),
    "laga": ((9.02, 9.09), (25.9 * 0.995, 26.5 * 1.005), (26.5 * 0.995, 27.6 * 1.005)),
}


@pytest.mark.parametrize("form", TRIPLE)
def test_the_windows_of_the_issue(form):
    memory, explicit = result(form=form).memory, result(form="explicit").memory
    figures = (memory.saved_bytes, memory.peak_bytes, memory.allocated_peak_bytes)
    for figure, (low, high) in zip(figures, WINDOWS[form], strict=True):
        assert low <= (figure or 0) / 1e9 <= high
    if form == "laga":
        for name in ("peak_bytes", "allocated_peak_bytes"):
            assert abs(getattr(memory, name) / getattr(explicit, name) - 1) < 0.005


@pytest.mark.parametrize("seq_len", [4096, 8192, 16384])
@pytest.mark.parametrize("sp", [4, 8, 16])
def test_the_ratio_of_the_issue(seq_len, sp):
    both = {form: result(form=form, seq_len=seq_len, sp=sp).memory.allocated_peak_bytes or 0 for form in TRIPLE}
    assert 1.15 <= both["absorbed"] / both["explicit"] <= 1.36


@pytest.mark.parametrize("width", [32, 64, 128, 192])
def test_auto_is_never_a_kernel_without_a_program(width):
    """Narrow latents are within the widths of kernels that take no shared key: auto passes these over."""
    reported = mla_cost.plan(
        device="a100-80gb", form="all", scope="attention", seq_len=4096, dims={"kv_lora_rank": width}
    )
    for result in reported.results:
        assert result.verdict is not None
        assert result.verdict.status not in {"illegal", "unsupported"}, (result.form, result.verdict.reason)
