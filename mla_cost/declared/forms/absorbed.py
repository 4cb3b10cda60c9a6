"""The absorbed form: the key up-projection is folded into the query, which attends to the latent itself."""

from mla_cost.declared.forms.pieces import LATENT, QUERY, TITLES
from mla_cost.language.program import Form

FORM = Form(
    name="absorbed",
    title="the key up-projection folded into the query, one shared key of latent width",
    scheme="latent-gather",
    shared_key=True,
    qk="d_c+r",
    value="d_c",
    source="arXiv 2405.04434 (DeepSeek-V2), section 2.1.2",
    titles=TITLES,
    text=QUERY
    + LATENT
    + """
forward(x):
    q = query x
    exchange query q
    latent, k_rope = latent x
    key[S b d_c+r] = concat latent, k_rope
    exchange latent key
    w = parameter W_kv_up[n k+v d_c]
    exchange weights w
    w_uk[k], w_uv[v] = split w
    if names == held
        o = fold_and_attend q, key, w_uk
    else
        q = absorb q, w_uk
        value[S b d_c] = slice key
        o[S b n d_c] = attend q, key, value
        drop value
    o[S b n v] = einsum "sbnc,nvc->sbnv" o, w_uv
    exchange output o
    y[S b h] = linear o, W_o[h n v]
    return y

fold_and_attend(q, key, w_uk):
    q_nope[k], q_rope[r] = split q
    q_absorbed[S b n d_c] = einsum "sbnk,nkc->sbnc" q_nope, w_uk
    q_and_rope = concat q_absorbed, q_rope
    value[S b d_c] = slice key
    o[S b n d_c] = attend q_and_rope, key, value
    return o

absorb(q, w_uk):
    q_nope[k], q_rope[r] = split q
    q_absorbed[S b n d_c] = einsum "sbnk,nkc->sbnc" q_nope, w_uk
    q_and_rope[S b n d_c+r] = concat q_absorbed, q_rope
    return q_and_rope
""",
)
