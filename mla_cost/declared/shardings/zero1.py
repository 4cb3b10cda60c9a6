"""DeepSpeed's ZeRO-1, and BF16_Optimizer, which runs in its place: bf16 weights, their gradients added up in fp32."""

from mla_cost.declared.shardings.deepspeed import BUCKET, BUCKET_SOURCE, GATHER, REDUCE, SOURCE, step
from mla_cost.declared.states import GRADIENTS, OPTIMIZER, WEIGHTS, Case, Sharding

# flat weights and fp32 gradients of padded size, reduced with it, and no bucket (bf16_optimizer.py:148-166); gradients
# in bf16 are cleared by the step alone, immediate_grad_update being off (69, 387). It knows no owners: engine.py hands
# it no such setting
BF16_OPTIMIZER = Sharding(
    name="zero1",
    title="BF16_Optimizer: bf16 gradients added up in fp32 ones, both kept",
    source=f"{SOURCE}bf16_optimizer.py; which optimizer runs: engine.py:1994-1996",
    step=step,
    sends=(REDUCE._replace(padded=True, to_owners=None), GATHER),
    split=OPTIMIZER,
    padded=frozenset({WEIGHTS, GRADIENTS}),
    partial=True,
    clones=True,
)

SHARDING = Sharding(
    name="zero1",
    title="each rank updates its part; gradients are all-reduced after the last micro-batch",
    source=f"{SOURCE}zero/stage_1_and_2.py; engine.py:2903-2914",
    step=step,
    sends=(REDUCE, GATHER),
    split=OPTIMIZER,
    padded=frozenset({WEIGHTS}),
    clones=True,  # of its part, whatever the dtype (zero/stage_1_and_2.py:492)
    bucket_elements=BUCKET,
    bucket_source=BUCKET_SOURCE,
    cases=(Case("bf16", "fp32", BF16_OPTIMIZER),),
)
