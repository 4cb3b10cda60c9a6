"""Latent key gather: every rank keeps its own queries and all heads; the latent crosses by one all-gather."""

from mla_cost.declared.schemes.requirements import SEQUENCE
from mla_cost.language.program import Scheme

SCHEME = Scheme(
    name="latent-key-gather",
    title="all-gather of the latent; queries and output stay where they are",
    moves={"latent": "gather"},
    requires=(SEQUENCE,),
    systems=("Megatron AbsorbedMLASelfAttention under DSA, without its index key", "slime --allgather-cp"),
    use="in the absorbed form where heads cannot be divided; the explicit form expands everything everywhere",
    source="NVIDIA/Megatron-LM@d98e8a64 megatron/core/transformer/experimental_attention_variant/dsa.py:1835; "
    "THUDM/slime@624b824a slime/backends/megatron_utils/arguments.py:24-33",
    notes=("the explicit form makes keys and values of all positions and heads on every rank",),
)
