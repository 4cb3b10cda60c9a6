"""The explicit form: the latent is expanded to keys and values of every head."""

from mla_cost.declared.forms.pieces import LATENT, QUERY, TITLES
from mla_cost.language.program import Form

FORM = Form(
    name="explicit",
    title="the latent expanded to keys and values of every head",
    scheme="ulysses",
    source="arXiv 2405.04434 (DeepSeek-V2), section 2.1",
    known_as="expanded_ulysses on Ascend",
    titles=TITLES,
    text=QUERY
    + LATENT
    + """
forward(x):
    q = query x
    exchange query q
    latent, k_rope = latent x
    exchange latent latent, k_rope
    w = parameter W_kv_up[n k+v d_c]
    exchange weights w
    key, value = keys_values latent, k_rope, w
    exchange key key
    exchange value value
    o = attend q, key, value
    exchange output o
    y[S b h] = linear o, W_o[h n v]
    return y

keys_values(latent, k_rope, w):
    kv[S b n k+v] = linear latent, w
    k_nope[k], value[v] = split kv
    if v_layout == contiguous
        value = contiguous value
    k_rope_heads = expand k_rope, k_nope
    key[S b n k+r] = concat k_nope, k_rope_heads
    return key, value
""",
)
