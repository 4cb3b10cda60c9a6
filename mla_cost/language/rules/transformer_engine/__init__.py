"""What Megatron-Core runs with Transformer Engine: linears that keep a shard, fused activations, routed rows, losses.

Read in source, not run: NVIDIA/Megatron-LM@d98e8a64ddf3 (`M:`, paths under megatron/core) and
NVIDIA/TransformerEngine@d0067d0da6cb (`T:`, paths under transformer_engine/pytorch), bf16. Every weight gradient of a
linear is written into its buffer by the product itself (gradient accumulation fusion), so no such tensor is made; what
autograd is handed instead is one standing tensor for every distinct shape (T: module/base.py:134-148;
M: tensor_parallel/layers.py:742-754).
"""

from __future__ import annotations

from mla_cost.language.rules.transformer_engine.activations import (
    swiglu,
    weighted_swiglu,
)
from mla_cost.language.rules.transformer_engine.dispatchers import (
    deepep_combine,
    deepep_dispatch,
    hybridep_combine,
    hybridep_dispatch,
    rows_from_experts,
    rows_to_experts,
)
from mla_cost.language.rules.transformer_engine.linears import (
    GATHER_BUFFER,
    STAND_IN,
    column_linear,
    grouped_rows,
    head_linear,
    joined_linear,
    norm_linear,
    row_linear,
    whole_linear,
)
from mla_cost.language.rules.transformer_engine.losses import (
    cross_entropy_compiled,
    cross_entropy_fp32,
    cross_entropy_in_place,
)
from mla_cost.language.rules.transformer_engine.rotary import (
    rope_in_place,
    rope_keys_values,
    rope_with_tables,
)
from mla_cost.language.rules.transformer_engine.routing import (
    add_in_place,
    permute,
    route,
    sort_rows,
    sum_in_fp32,
    unpermute,
)
from mla_cost.language.rules.transformer_engine.sharding import (
    gather_columns,
    own_rows,
)

__all__ = [
    "GATHER_BUFFER",
    "STAND_IN",
    "add_in_place",
    "column_linear",
    "cross_entropy_compiled",
    "cross_entropy_fp32",
    "cross_entropy_in_place",
    "deepep_combine",
    "deepep_dispatch",
    "gather_columns",
    "grouped_rows",
    "head_linear",
    "hybridep_combine",
    "hybridep_dispatch",
    "joined_linear",
    "norm_linear",
    "own_rows",
    "permute",
    "rope_in_place",
    "rope_keys_values",
    "rope_with_tables",
    "route",
    "row_linear",
    "rows_from_experts",
    "rows_to_experts",
    "sort_rows",
    "sum_in_fp32",
    "swiglu",
    "unpermute",
    "weighted_swiglu",
    "whole_linear",
]
