"""Transformer Engine's `a2a+p2p`: heads are exchanged inside groups, keys and values go round between them."""

from mla_cost.declared.schemes.requirements import HALVES_OUTSIDE, HEADS_INSIDE, INSIDE, SEQUENCE
from mla_cost.declared.schemes.ulysses import SCHEME as ULYSSES
from mla_cost.language.program import Scheme

SCHEME = Scheme(
    name="a2a-p2p",
    title="all-to-all of q, k, v and the output inside groups; k and v passed from group to group",
    moves=ULYSSES.moves,
    requires=(SEQUENCE, INSIDE, HEADS_INSIDE, HALVES_OUTSIDE),
    attends="ring_attention",
    inside="heads",
    deal="zig-zag",
    profiles=("megatron",),
    systems=("Megatron cp_comm_type a2a+p2p with hierarchical_context_parallel_sizes",),
    use="where sp goes beyond the heads or a node: heads inside the node, hops between nodes",
    source="NVIDIA/TransformerEngine@d0067d0d "
    "transformer_engine/pytorch/attention/dot_product_attention/context_parallel.py:1407, 2405, 5020-5032",
    paper="arXiv 2405.07719",
)
