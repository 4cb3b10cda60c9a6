"""MindSpeed's ring without a cache: the chunk that came last is kept, gradients go along in the keys' dtype."""

from mla_cost.declared.schemes.requirements import HALVES
from mla_cost.language.program import Scheme

SCHEME = Scheme(
    name="ring-mindspeed",
    title="k and v passed from rank to rank, two chunks at once; backward turns the other way, gradients P - 1 hops",
    moves={},
    requires=(HALVES,),
    attends='around "move hops" "saved last" "back along" "gradients as-keys" "alive three"',
    deal="zig-zag",
    systems=("MindSpeed --context-parallel-algo megatron_cp_algo",),
    use="on Ascend, where heads cannot be divided",
    source="Ascend/MindSpeed@028de58c "
    "mindspeed/core/context_parallel/ring_context_parallel/ring_context_parallel.py:922-1190",
)
