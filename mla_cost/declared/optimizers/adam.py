"""Adam and AdamW: two averages of the gradient for every weight."""

from mla_cost.declared.states import Optimizer, StateTensor

OPTIMIZER = Optimizer(
    name="adam",
    title="two moments",
    source="arXiv 1412.6980; NVIDIA/Megatron-LM@d98e8a64 optimizer/distrib_optimizer.py",
    tensors=(StateTensor("exp_avg"), StateTensor("exp_avg_sq")),
)
