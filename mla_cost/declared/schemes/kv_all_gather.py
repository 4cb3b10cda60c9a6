"""KV all-gather: as `kv-gather`, but the local keys and values are kept and gathered again in backward."""

from mla_cost.declared.schemes.requirements import HALVES
from mla_cost.language.program import Scheme

SCHEME = Scheme(
    name="kv-all-gather",
    title="all-gather of k and v inside attention, again in backward; queries and output stay where they are",
    moves={},
    requires=(HALVES,),
    attends="gathered_attention",
    use="where heads cannot be divided and a gather's two copies fit",
    source="NVIDIA/TransformerEngine@d0067d0d "
    "transformer_engine/pytorch/attention/dot_product_attention/context_parallel.py:3014-4167 (Megatron "
    "cp_comm_type all_gather)",
    deal="zig-zag",
    profiles=("megatron",),
    offered=True,
)
