"""Pieces that more than one form is made of. The style they follow is docs/decisions/0001.

A part that a model does not have (r without RoPE) is absent, and what is made of it is what remains: no text asks.
"""

QUERY = """
query(x):
    if d_q
        q_latent[S b d_q] = linear x, W_q_down[d_q h]
        q_normed = norm q_latent, g_q[d_q]
        drop q_latent
        q_up[S b n k+r] = linear q_normed, W_q_up[n k+r d_q]
        drop q_normed
    else
        q_up[S b n k+r] = linear x, W_q[n k+r h]
    q_nope[k], q_rope[r] = split q_up
    q_rotated = rope q_rope
    q[S b n k+r] = concat q_nope, q_rotated
    return q
"""

LATENT = """
latent(x):
    kv_latent[S b d_c+r] = linear x, W_kv_down[d_c+r h]
    c[d_c], k_rope[r] = split kv_latent
    latent[S b d_c] = norm c, g_kv[d_c]
    k_rotated[S b r] = rope k_rope
    return latent, k_rotated
"""

# what tables call the weights of these pieces and of those that every form ends with
TITLES = {
    "W_q": "attention.q",
    "W_q_down": "attention.q_down",
    "g_q": "attention.q_norm",
    "W_q_up": "attention.q_up",
    "W_kv_down": "attention.kv_down",
    "g_kv": "attention.kv_norm",
    "W_kv_up": "attention.kv_up",
    "W_o": "attention.output",
}
