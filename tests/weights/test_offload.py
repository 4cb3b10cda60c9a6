"""An optimizer on the host, by Megatron-Core's HybridDeviceOptimizer: 16 bytes for each weight of a rank's part there.

NVIDIA/Megatron-LM@d98e8a64 core/optimizer/cpu_offloading/hybrid_optimizer.py: a weight and its gradient in fp32, two
moments of CPU Adam; fp32 gradients go down, bf16 weights come up.
"""

from __future__ import annotations

from typing import Any

import pytest

import mla_cost
from mla_cost.errors import InputError

# Moonlight over tp 2, ep 8, dp 4: experts 26 x 8 of 3 x 2048 x 1408, whole on their rank; a quarter of what is dense
EXPERTS = 26 * 8 * 3 * 2048 * 1408
ATTENTION = 2048 * 16 * 192 // 2 + 2048 * 576 + 512 * 16 * 256 // 2 + 2048 * 2048 // 2
NORMS = 27 * (3 * 2048 + 512) + 2048
DENSE = 2 * 163840 * 2048 // 2 + 26 * 3 * 2048 * 2816 // 2 + 3 * 2048 * 11264 // 2 + 27 * ATTENTION + 26 * 64 * 2048
PART = EXPERTS + (DENSE + NORMS) // 4
ASKED: dict[str, Any] = {
    "model": "moonlight-16b-a3b", "scope": "model", "device": "h100-80gb", "form": "explicit", "kernel": "flash",
    "profile": "megatron", "seq_len": 4096, "tp": 2, "sp": 1, "ep": 8, "dp": 4, "sharding": "distributed",
}  # fmt: skip


def row(**changed: Any) -> Any:
    return mla_cost.plan(**{**ASKED, **changed}).results[0]


def test_states_on_the_host_are_not_on_the_device():
    beside, half, all_of_it = row(), row(optimizer_offload=50), row(optimizer_offload=100)
    assert beside.host is None
    assert beside.memory.optimizer_bytes == 12 * PART
    assert half.memory.optimizer_bytes == 12 * PART // 2
    assert all_of_it.memory.optimizer_bytes == 0
    assert all_of_it.memory.allocated_peak_bytes == beside.memory.allocated_peak_bytes - 12 * PART
    host = all_of_it.host
    assert (host.bytes, host.to_host_bytes, host.from_host_bytes) == (16 * PART, 4 * PART, 2 * PART)
    assert (host.ranks, host.node_bytes, host.status) == (8, 8 * 16 * PART, "fits")  # of 2 TB
    assert all_of_it.memory.stages[0].host_bytes == 16 * PART
    small = row(optimizer_offload=100, host_memory="200GB")
    assert small.host.status == "oom"
    assert any("which has 186 GiB: does not fit" in note for note in small.notes)


def test_bf16_gradients_are_cast_for_what_stays_on_the_device_only():
    """`_set_sub_optimizer_grads`: fp32 gradients of weights whose optimizer is on the device."""
    step = [row(gradient_dtype="bf16", optimizer_offload=share, remat="full") for share in (0, 100)]
    assert "step" in step[0].memory.allocated_peak_moment.phase
    assert "step" not in step[1].memory.allocated_peak_moment.phase


def test_a_sweep_prices_it_as_a_plan_does_and_levers_offer_it():
    swept: Any = mla_cost.sweep(over={"optimizer_offload": [0, 40, 100]}, **ASKED)
    assert [each["allocated_peak_bytes"] for each in swept] == [
        row(optimizer_offload=share).memory.allocated_peak_bytes for share in (0, 40, 100)
    ]
    answer: Any = mla_cost.levers(**ASKED)
    (lever,) = [it for it in answer.results[0].verdict.levers if it.lever == "optimizer_offload"]
    assert lever.required_delta_bytes == -12 * PART


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"moment_dtype": "bf16"}, "moment_dtype fp32 only"),
        ({"main_weights": "remainders"}, "main_weights fp32 only"),
        ({"sharding": "ddp"}, "priced with sharding distributed"),
    ],
)
def test_what_no_host_runs_is_refused(changed, said):
    refused = row(optimizer_offload=100, **changed)
    assert refused.verdict.status == "illegal"
    assert said in refused.verdict.reason
    with pytest.raises(InputError, match="at most 100"):
        row(optimizer_offload=101)
