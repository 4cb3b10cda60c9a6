"""Untied Ulysses for MLA: one head of each rank at a time is made of the latents, exchanged, attended to, sent back."""

from mla_cost.declared.schemes.requirements import HEADS, SEQUENCE
from mla_cost.language.program import Scheme

SCHEME = Scheme(
    name="ulysses-turns",
    title="all-to-all of q, k, v and the output one head a rank at a time; all made and sent again in backward",
    moves={},
    requires=(SEQUENCE, HEADS),
    attends="in_turns",
    turns=True,
    text="""
query(x):
    if d_q
        q_latent[S b d_q] = linear x, W_q_down[d_q h]
        q = norm q_latent, g_q[d_q]
    else
        q = same x
    return q
keys_values(latent, k_rope, w):
    carried[S b d_c+r] = concat latent, k_rope
    return carried, w
attend(q, key, value):
    if d_q
        o = in_turns q, W_q_up[n k+r d_q], key, value
    else
        o = in_turns q, W_q[n k+r h], key, value
    return o
""",
    basis="inferred",
    systems=("togethercomputer/Untied-Ulysses (UPipe), for grouped queries",),
    use="where what lies there during attention is too large and exchanges are cheap: backward sends twice as much",
    source="togethercomputer/Untied-Ulysses@e465aa8 untied_ulysses/fully_fused_attn.py:91-351",
    paper="arXiv 2602.21196",
    notes=("its code makes queries, keys and values of hidden states; nobody ships it for latents",),
)
