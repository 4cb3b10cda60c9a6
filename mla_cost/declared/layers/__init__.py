"""What a model is made of beside attention, one declaration per file: a new file here is found by itself."""

from importlib import import_module
from pathlib import Path

from mla_cost.language.program import Layer, Role

_FILES = sorted(path.stem for path in Path(__file__).parent.glob("*.py") if path.stem not in {"__init__", "pieces"})
LAYERS: dict[str, Layer] = {
    layer.name: layer for layer in (import_module(f"mla_cost.declared.layers.{name}").LAYER for name in _FILES)
}
# what tensor parallelism moves at the points of these texts (`megatron_sp`): into a region and out of it
TENSOR_PARALLEL = {"region": 'gather "tp"', "region_end": 'scatter "tp"'}
# what expert parallelism moves: rows to the ranks of their experts and back
EXPERT_PARALLEL = {"dispatch": "to_experts", "combine": "from_experts"}
# where each expert is divided: the rows of all its ranks on each of them, and their sums back
EXPERT_TENSOR_PARALLEL = {"expert_region": 'gather "etp"', "expert_region_end": 'scatter "etp"'}
# rows of several ranks are put into another order, there and back
FROM_SEVERAL_RANKS = {"by_expert": "reorder", "by_source": "reorder"}
# weights that `down_projections: sharded` divides by rows over tensor-parallel ranks, and the dim of one rank's rows
COLUMNS = {"W_q_down": "d_q_part", "W_kv_down": "kv_part"}
# in a model whose embeddings are tied, the weight on the left is the one on the right
TIED = {"W_head": "W_embedding"}


def named(role: Role, *, experts: bool = False) -> str:
    """The first declared layer of a role, with experts or without."""
    return next(name for name, layer in LAYERS.items() if layer.role == role and layer.experts == experts)
