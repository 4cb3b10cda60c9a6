"""Pieces that more than one form is made of. The style they follow is docs/decisions/0001."""

QUERY = """
query(x):
    if d_q
        if down_projections == sharded
            q_latent = linear x, W_q_down[d_q_part h]
            q_latent[d_q] = join_columns q_latent
        else
            q_latent = linear x, W_q_down[d_q h]
        q_normed = norm q_latent, g_q[d_q]
        drop q_latent
        q_up = linear q_normed, W_q_up[n k+r d_q]
        drop q_normed
    else
        q_up = linear x, W_q[n k+r h]
    if not r
        return q_up
    q_nope[k], q_rope[r] = split q_up
    q_rotated = rope q_rope
    q = concat q_nope, q_rotated
    return q
"""

LATENT = """
latent(x):
    if not r
        if down_projections == sharded
            kv_latent = linear x, W_kv_down[kv_part h]
            kv_latent[d_c] = join_columns kv_latent
        else
            kv_latent = linear x, W_kv_down[d_c h]
        latent = norm kv_latent, g_kv[d_c]
        return latent
    if down_projections == sharded
        kv_latent = linear x, W_kv_down[kv_part h]
        kv_latent[d_c+r] = join_columns kv_latent
    else
        kv_latent = linear x, W_kv_down[d_c+r h]
    c[d_c], k_rope[r] = split kv_latent
    latent = norm c, g_kv[d_c]
    k_rotated = rope k_rope
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
