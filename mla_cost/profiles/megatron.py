"""Megatron-Core with Transformer Engine in bf16 and a fused attention kernel (docs/megatron.md).

Read in NVIDIA/Megatron-LM@d98e8a64ddf3 and NVIDIA/TransformerEngine@d0067d0da6cb; each op cites its lines in
mla_cost/rules/transformer_engine.py. Activations between modules are sequence shards [u b h] (`megatron_sp`): a linear
gathers what it needs and scatters what it makes, so no region stands around a block.
"""

from mla_cost.program import Allowance, Profile

# megatron/core/transformer/multi_latent_attention.py:755-763, 913-990; models/gpt/gpt_layer_specs.py:239-248, 295-320
ATTENTION = """
forward(x):
    q, key, value = projections x
    exchange query q
    exchange key key
    exchange value value
    o = attend q, key, value
    drop q, key, value
    exchange output o
    y = row_linear o, W_o[h n v]
    return y

projections(x):
    if d_q
        q_latent = whole_linear x, W_q_down[d_q h]
    kv_latent = whole_linear x, W_kv_down[d_c+r h]
    latent[d_c], k_rope[r] = split kv_latent
    exchange region k_rope
    if d_q
        q, key, value = up_projections q_latent, latent, k_rope
    else
        q, key, value = up_projections x, latent, k_rope
    return q, key, value

up_projections(given, latent, k_rope):
    if d_q
        q = norm_linear given, g_q[d_q], W_q_up[n k+r d_q]
    else
        q = norm_linear given, g_q[h], W_q[n k+r h]
    kv = norm_linear latent, g_kv[d_c], W_kv_up[n k+v d_c]
    if rope_fusion == on
        q = rope_in_place q
        key[k+r], value[v] = rope_keys_values kv, k_rope
        return q, key, value
    q_nope[k], q_rope[r] = split q
    q_rotated = rope_with_tables q_rope
    q = concat q_nope, q_rotated
    k_nope[k], value_view[v] = split kv
    k_rotated = rope_with_tables k_rope
    k_rope_heads = expand k_rotated, k_nope
    key = concat k_nope, k_rope_heads
    value = contiguous value_view
    return q, key, value

input_norm(x):
    hidden = fused_norm x, g_attention[h]
    return hidden
"""

# megatron/core/transformer/transformer_layer.py; in a dense layer the second norm is part of the first linear
DENSE = """
layer(x):
    hidden = input_norm x
    attended = forward hidden
    attended = remade attended, hidden
    drop hidden
    residual = add x, attended
    mlp_out = mlp residual
    y = add residual, mlp_out
    return y

mlp(residual):
    gate_up = norm_linear residual, g_mlp[h], W_fc1[f+f h]
    product[f] = swiglu gate_up
    out = row_linear product, W_fc2[h f]
    return out
"""

# megatron/core/transformer/moe/: moe_layer.py, token_dispatcher.py:624-676, 1424-1455, shared_experts.py:200, 247-272
MOE = """
layer(x):
    hidden = input_norm x
    attended = forward hidden
    attended = remade attended, hidden
    drop hidden
    residual = add x, attended
    hidden = pre_mlp_norm residual
    if m
        shared_out = shared_experts hidden
    mixed = experts hidden
    if m
        mixed = add mixed, shared_out
    mixed = remade mixed, hidden
    drop hidden
    y = add residual, mixed
    return y

pre_mlp_norm(residual):
    hidden = fused_norm residual, g_mlp[h]
    return hidden

activation(gate_up, row_weights):
    product[g] = weighted_swiglu gate_up, row_weights
    return product

experts(hidden):
    weights = route hidden, W_router[e h]
    if dispatcher == deepep
        tokens, token_weights = deepep_dispatch hidden, weights
        rows, row_weights, row_map = rows_of tokens, token_weights
        drop tokens, token_weights
    else
        rows, row_weights, row_map = rows_of hidden, weights
        rows = rows_to_experts rows
        row_weights = rows_to_experts row_weights
        rows, row_weights = sort_rows rows, row_weights
    gate_up = grouped_rows rows, W_fc1[c g+g h]
    product = activation gate_up, row_weights
    out = grouped_rows product, W_fc2[c h g]
    drop product
    if dispatcher == deepep
        summed = tokens_of out, row_map
        drop out
        mixed = deepep_combine summed
        return mixed
    out = sort_rows out
    out = rows_from_experts out
    mixed = tokens_of out, row_map
    return mixed

shared_experts(hidden):
    if shared_overlap == on
        exchange region hidden
        gate_up = whole_linear hidden, W_shared_fc1[m+m h]
        product[m] = swiglu gate_up
        out = whole_linear product, W_shared_fc2[h m]
        exchange region_end out
        return out
    gate_up = column_linear hidden, W_shared_fc1[m+m h]
    product[m] = swiglu gate_up
    out = row_linear product, W_shared_fc2[h m]
    return out
"""

# megatron/core/transformer/multi_token_prediction.py:1331-1359
MTP_INPUT = """
mtp_input(x):
    embedded = embedding W_embedding[V h]
    exchange region_end embedded
    tokens = fused_norm embedded, g_tokens[h]
    hidden = fused_norm x, g_hidden[h]
    joined = concat tokens, hidden
    y = joined_linear joined, W_joined[j h+h]
    return y
"""

# megatron/core/models/gpt/gpt_model.py; tensor_parallel/cross_entropy.py:30, 70-72, 105-130, 181
HEAD = """
layer(x):
    hidden = fused_norm x, g_final[h]
    logits = head_linear hidden, W_head[V h]
    if cross_entropy == te-in-place
        loss = cross_entropy_in_place logits
        return loss
    if cross_entropy == te-fp32
        loss = cross_entropy_fp32 logits
        return loss
    loss = cross_entropy logits
    return loss
"""

_CUBLAS = (
    "NVIDIA/TransformerEngine@d0067d0da6cb transformer_engine/pytorch/cpp_extensions/gemm.py:40-67 (sm90 and later)"
)
_NO_PATH = "Megatron-Core trains dense MLA by expanding the latent; use form explicit, or profile reference"

PROFILE = Profile(
    name="megatron",
    title="Megatron-Core with Transformer Engine, bf16, fused attention",
    source="NVIDIA/Megatron-LM@d98e8a64ddf3, NVIDIA/TransformerEngine@d0067d0da6cb",
    texts={
        "dense": ATTENTION + DENSE,
        "moe": ATTENTION + MOE,
        "mtp_input": MTP_INPUT,
        "head": HEAD,
        "embedding": "",
    },
    kernels=("flash",),
    schemes=("ulysses",),
    refused={"absorbed": f"no absorbed training path: {_NO_PATH}", "laga": f"no gather of the latent: {_NO_PATH}"},
    fixed={"v_layout": "contiguous", "norm": "fused", "softmax_dtype": "activation", "mask": "none"},
    needs={"r": "its MLA always rotates a part of query and key"},
    recomputes=("mla_up_proj", "layernorm", "moe_act"),
    allowances=(
        Allowance("cuBLAS workspace", 32 * 2**20 + 1024, _CUBLAS),
        Allowance("cuBLAS workspaces of the grouped products", 4 * (32 * 2**20 + 1024), _CUBLAS, with_experts=True),
    ),
    notes=(
        (
            "profile megatron prices what Megatron-Core with Transformer Engine keeps, read in their sources and not "
            "run here (docs/megatron.md)"
        ),
        "the total holds buffers that stand for the whole run: see the breakdown in --format json",
    ),
)
