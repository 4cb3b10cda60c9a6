"""Plain data parallelism: every rank keeps everything, and gradients are summed."""

from mla_cost.declared.states import Send, Sharding

SHARDING = Sharding(
    name="ddp",
    title="every rank keeps all states; gradients are all-reduced",
    source="NVIDIA/Megatron-LM@d98e8a64 distributed/param_and_grad_buffer.py, without the distributed optimizer",
    step=lambda _ranks: 1,
    sends=(Send("gradients", "all_reduce", dtype="gradients"),),
)
