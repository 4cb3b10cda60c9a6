"""What DeepSpeed's ways to shard have in common. Read at edaa7221, under deepspeed/runtime.

Gradients are all-reduced, in the weights' dtype whatever they are added up in, and in fp32 where ranks share a sequence
(engine.py:1405-1416, 1857; zero/stage_1_and_2.py:1443-1460, 1843-1847; constants.py:306). With
`use_multi_rank_bucket_allreduce: false` each rank's slice of a bucket goes through `dist.reduce` to that rank alone, in
the same dtype (at 38327e07: zero/stage_1_and_2.py:1126-1149, 1490-1521, 1551-1573).
"""

from mla_cost.declared.states import Send

SOURCE = "deepspeedai/DeepSpeed@edaa7221 runtime/"
REDUCE = Send("gradients", "all_reduce", dtype="weights", shared_dtype="fp32", to_owners="reduce")
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
