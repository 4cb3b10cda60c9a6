"""PyTorch's `context_parallel` as it rotates by default: keys and values by all-gather, gradients round by permute."""

from mla_cost.declared.schemes.requirements import HALVES
from mla_cost.language.program import Scheme

SCHEME = Scheme(
    name="gather-rotate",
    title="all-gather of k and v, again in backward; fp32 gradients go round, P hops",
    moves={},
    requires=(HALVES,),
    attends='around "move gather" "saved own" "back home" "gradients fp32" "alive all"',
    deal="zig-zag",
    systems=("PyTorch context_parallel, allgather rotation (default)",),
    use="where PyTorch runs attention and memory allows all keys and values at once",
    source="pytorch/pytorch@09b101c5 torch/distributed/tensor/experimental/_context_parallel/_attention.py: "
    "_AllGatherRotater, _templated_ring_attention",
)
