"""What sparse attention gathers (DSA): the latent with the rotated key, and the key of the indexer."""

from mla_cost.declared.schemes.requirements import HALVES
from mla_cost.language.program import Scheme

SCHEME = Scheme(
    name="index-key-gather",
    title="all-gather of the latent and of the indexer's key; queries and output stay where they are",
    moves={"latent": "gather", "index_key": "gather"},
    requires=(HALVES,),
    text="""
latent(x):
    kv_latent[S b d_c+r] = linear x, W_kv_down[d_c+r h]
    c[d_c], k_rope[r] = split kv_latent
    normed[S b d_c] = norm c, g_kv[d_c]
    k_rotated[S b r] = rope k_rope
    index = index_key x
    exchange index_key index
    latent = with_index normed, index
    return latent, k_rotated
""",
    deal="zig-zag",
    systems=("Megatron's DSA with AbsorbedMLASelfAttention",),
    use="for models with an indexer: what attention and its indexer read, and no more",
    source="NVIDIA/Megatron-LM@d98e8a64 megatron/core/transformer/experimental_attention_variant/dsa.py:1835 latent, "
    "1984 index key, which gradients of the indexer's loss go back through",
    notes=(
        "attention is priced to all tokens, and the copies into the order of the sequence are left out",
        "a model without an indexer sends the latent alone",
    ),
)
