"""MindSpeed's ring with `--context-parallel-kv-cache-policy half`: of all hops but one the keys are kept."""

from mla_cost.declared.schemes.requirements import HALVES
from mla_cost.language.program import Scheme

SCHEME = Scheme(
    name="ring-cache-half",
    title="k and v passed from rank to rank, k kept; backward moves v in every hop and k in the first",
    moves={},
    requires=(HALVES,),
    attends='around "move hops" "saved every-key" "back along" "gradients as-keys" "alive three"',
    deal="zig-zag",
    systems=("MindSpeed --context-parallel-kv-cache-policy half",),
    use="between ring-cache-full and a ring that keeps one chunk",
    source="Ascend/MindSpeed@028de58c "
    "mindspeed/core/context_parallel/ring_context_parallel/context_parallel_kv_cache.py:53-126, "
    "ring_context_parallel.py:761-780; docs/zh/features/context_parallelism_kv_cache.md",
)
