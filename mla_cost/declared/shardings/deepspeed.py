"""What DeepSpeed's ways to shard have in common. Read at edaa7221, under deepspeed/runtime.

Gradients are all-reduced, in the weights' dtype whatever they are added up in, and in fp32 where ranks share a sequence
(engine.py:1405-1416, 1857; zero/stage_1_and_2.py:1443-1460, 1843-1847; constants.py:306).
"""

from mla_cost.declared.states import Send

SOURCE = "deepspeedai/DeepSpeed@edaa7221 runtime/"
REDUCE = Send("gradients", "all_reduce", dtype="weights", shared_dtype="fp32")
GATHER = Send("weights", "all_gather", dtype="weights", padded=True)
BUCKET = 500_000_000  # zero/config.py, reduce_bucket_size
# as wide as the weights and of its full size whatever a rank holds; a second one, with overlap_comm, is not counted
BUCKET_SOURCE = (
    f"{SOURCE}zero/stage_1_and_2.py:156, 2493-2514 (setup_buckets): reduce_bucket_size "
    "elements of the weights' dtype, without overlap_comm"
)


def step(ranks: int) -> int:
    """Elements to a multiple of which a buffer is padded (zero/stage_1_and_2.py:377)."""
    return 2 * ranks
