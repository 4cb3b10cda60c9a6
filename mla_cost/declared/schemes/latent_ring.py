"""Latent ring: latents go round, and each hop makes the keys and values that it attends to, forward and backward."""

from mla_cost.declared.schemes.requirements import HALVES
from mla_cost.language.program import Scheme

SCHEME = Scheme(
    name="latent-ring",
    title="the latent passed from rank to rank, keys and values made at every hop; gradients in fp32 go P hops, home",
    moves={},
    requires=(HALVES,),
    attends="latent_ring",
    text="""
keys_values(latent, k_rope, w):
    return latent, k_rope
attend(q, key, value):
    o = latent_ring q, W_kv_up[n k+v d_c], key, value
    return o
""",
    deal="zig-zag",
    systems=("pith-train pull request 43", "Transformer Engine pull request 2064 (open)"),
    use="where links are slow and flops are not: 71 times less than keys and values at DeepSeek-V3's widths",
    source="mlc-ai/pith-train@889a4088",
)
