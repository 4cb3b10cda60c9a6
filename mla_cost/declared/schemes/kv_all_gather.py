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
    source="NVIDIA/Megatron-LM, context parallelism with cp_comm_type all_gather; arXiv 2407.21783, section 3.3.2",
    deal="zig-zag",
    profiles=("megatron",),
    offered=True,
)
