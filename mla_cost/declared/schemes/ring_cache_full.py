"""MindSpeed's ring with `--context-parallel-kv-cache-policy full`: keys and values of all hops but one are kept."""

from mla_cost.declared.schemes.requirements import HALVES
from mla_cost.language.program import Scheme

SCHEME = Scheme(
    name="ring-cache-full",
    title="k and v passed from rank to rank and kept; backward moves them one hop, gradients P - 1",
    moves={},
    requires=(HALVES,),
    attends='around "move hops" "saved every" "back along" "gradients as-keys" "alive three"',
    deal="zig-zag",
    systems=("MindSpeed --context-parallel-kv-cache-policy full",),
    use="where links are slow and memory is not: backward sends keys and values once",
    source="Ascend/MindSpeed@028de58c "
    "mindspeed/core/context_parallel/ring_context_parallel/context_parallel_kv_cache.py:76-132, "
    "ring_context_parallel.py:761-780; docs/zh/features/context_parallelism_kv_cache.md",
)
