"""Ring: every rank keeps its own queries and all heads; keys and values go round, rank to rank, while it attends."""

from mla_cost.declared.schemes.requirements import HALVES
from mla_cost.language.program import Scheme

SCHEME = Scheme(
    name="ring",
    title="k and v passed from rank to rank, point to point, one step of attention for each",
    moves={},
    requires=(HALVES,),
    attends="ring_attention",
    use="where heads cannot be divided and hops hide behind attention",
    source="NVIDIA/TransformerEngine@d0067d0d "
    "transformer_engine/pytorch/attention/dot_product_attention/context_parallel.py:1356-2972 (Megatron "
    "cp_comm_type p2p)",
    paper="arXiv 2310.01889",
    deal="zig-zag",
    profiles=("megatron",),
    offered=True,
)
