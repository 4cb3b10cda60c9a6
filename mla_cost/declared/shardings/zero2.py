"""DeepSpeed's ZeRO-2: gradients are shared as well, and reduced as each micro-batch ends."""

from mla_cost.declared.shardings.deepspeed import BUCKET, BUCKET_SOURCE, GATHER, REDUCE, SOURCE, step
from mla_cost.declared.states import GRADIENTS, OPTIMIZER, WEIGHTS, Sharding

SHARDING = Sharding(
    name="zero2",
    title="each rank keeps its part of gradients and updates its part; gradients are all-reduced every micro-batch",
    source=f"{SOURCE}zero/stage_1_and_2.py; engine.py:2903-2914",
    step=step,
    sends=(REDUCE._replace(calls="micro-batch"), GATHER),
    split=OPTIMIZER | {GRADIENTS},
    padded=frozenset({WEIGHTS}),
    clones=True,  # of its part, whatever the dtype (zero/stage_1_and_2.py:492)
    bucket_elements=BUCKET,
    bucket_source=BUCKET_SOURCE,
    one_stage=(
        "zero2 shards gradients as each micro-batch ends, which a pipeline (pp {pp}) would repeat per "
        "micro-batch, and DeepSpeed refuses it; change sharding to zero1 or distributed, or pp to 1"
    ),
)
