"""Megatron's distributed optimizer.

It pads to lcm(ranks, 128), here once per buffer: it does so once per bucket and aligns each weight to 64, which adds at
most lcm(ranks, 128) elements a bucket.
"""

from mla_cost.declared.states import GRADIENTS, OPTIMIZER, WEIGHTS, Offload, Send, Sharding
from mla_cost.language.numbers import least_common_multiple

SHARDING = Sharding(
    name="distributed",
    title="each rank updates its part: gradients are reduced and scattered, weights gathered",
    source="NVIDIA/Megatron-LM@d98e8a64 optimizer/distrib_optimizer.py; padding: optimizer/param_layout.py",
    step=lambda ranks: least_common_multiple(ranks, 128),
    sends=(
        Send("gradients", "reduce_scatter", dtype="gradients", padded=True),
        Send("weights", "all_gather", dtype="weights", padded=True),
    ),
    split=OPTIMIZER,
    padded=frozenset({WEIGHTS, GRADIENTS}),
    # HybridDeviceOptimizer: weights and gradients in fp32 and two moments of CPU Adam; a gradient is copied into fp32
    offload=Offload(
        host=4 + 4 + 8,
        to_host=4,
        source="NVIDIA/Megatron-LM@d98e8a64 core/optimizer/cpu_offloading/hybrid_optimizer.py:74-112, 250-305",
    ),
)
