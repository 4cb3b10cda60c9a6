"""Megatron-Core with Transformer Engine in bf16 and a fused attention kernel (docs/megatron.md).

Read in NVIDIA/Megatron-LM@d98e8a64ddf3 and NVIDIA/TransformerEngine@d0067d0da6cb; each op cites its lines in
mla_cost/language/rules/transformer_engine/. Activations between modules are sequence shards [u b h]
(`megatron_sp`): a linear
gathers what it needs and scatters what it makes, so no region stands around a block.
"""

from mla_cost.language.numbers import ceil_divide, round_up
from mla_cost.language.program import Allowance, Profile, Staging, StagingShape

# megatron/core/transformer/multi_latent_attention.py:755-763, 913-990; models/gpt/gpt_layer_specs.py:239-248, 295-320;
# down-projections that are ColumnParallelLinear are sharded: the same file, _qkv_down_projection and what follows it
ATTENTION = """
forward(x):
    q, key, value = projections x
    exchange query q
    exchange key key
    exchange value value
    if attention_backend == fused
        o = attend q, key, value
    else
        o = unfused q, key, value
    drop q, key, value
    exchange output o
    y = linear "row" o, W_o[h n v]
    return y

unfused(q, key, value):
    causal = causal_mask q, key
    scores = scaled_scores q, key
    if attention_backend == unfused
        probabilities = masked_softmax scores
    else
        probabilities = masked_softmax "in-place" scores
    context = einsum "bnst,tbnd->bnsd" "attention" probabilities, value
    turned = permute "bnsd" context
    drop context
    o = contiguous turned
    drop turned
    return o

projections(x):
    if d_q
        q_latent = query_latent x
    latent, k_rope = key_value_latent x
    if d_q
        q, key, value = up_projections q_latent, latent, k_rope
    else
        q, key, value = up_projections x, latent, k_rope
    return q, key, value

query_latent(x):
    if down_projections == sharded
        q_latent = linear "column" x, W_q_down[d_q_part h]
        q_latent[d_q] = gather_columns q_latent
        q_latent = own_rows q_latent
        return q_latent
    q_latent = linear "duplicated" x, W_q_down[d_q h]
    return q_latent

key_value_latent(x):
    if down_projections == sharded
        kv_latent = linear "column" x, W_kv_down[kv_part h]
        kv_latent[d_c+r] = gather_columns kv_latent
        latent[d_c], k_rope[r] = split kv_latent
        latent = own_rows latent
        return latent, k_rope
    kv_latent = linear "duplicated" x, W_kv_down[d_c+r h]
    latent[d_c], k_rope[r] = split kv_latent
    exchange region k_rope
    return latent, k_rope

up_projections(given, latent, k_rope):
    if d_q
        q = norm_linear given, g_q[d_q], W_q_up[n k+r d_q]
    else
        q = norm_linear given, g_q[h], W_q[n k+r h]
    kv = norm_linear latent, g_kv[d_c], W_kv_up[n k+v d_c]
    if rope_fusion == on
        q = rope "in-place" q
        key[k+r], value[v] = rope_keys_values kv, k_rope
        return q, key, value
    q_nope[k], q_rope[r] = split q
    q_rotated = rope "tables" q_rope
    q = concat q_nope, q_rotated
    k_nope[k], value_view[v] = split kv
    k_rotated = rope "tables" k_rope
    k_rope_heads = expand k_rotated, k_nope
    key = concat k_nope, k_rope_heads
    value = contiguous value_view
    return q, key, value

input_norm(x):
    hidden = norm x, g_attention[h]
    return hidden
"""

# megatron/core/transformer/transformer_layer.py; in a dense layer the second norm is part of the first linear
DENSE = """
layer(x):
    hidden = input_norm x
    attended = mixer hidden
    attended = remade attended, hidden
    drop hidden
    residual = add x, attended
    mlp_out = mlp residual
    y = add residual, mlp_out
    return y

mlp(residual):
    gate_up = norm_linear residual, g_mlp[h], W_fc1[f+f h]
    product[f] = swiglu gate_up
    out = linear "row" product, W_fc2[h f]
    return out
"""

# megatron/core/transformer/moe/: moe_layer.py:659-719 (`mixture`, the one checkpoint of its recomputation);
# shared_experts.py:200, and where they overlap 234-357 (their second half after the way back); token_dispatcher.py:
# MoEAlltoAllTokenDispatcher 624-907, where what the experts made has its name until routed_experts_compute returns
# (moe_layer.py:564-570), MoEFlexTokenDispatcher 1972-2051, _HybridEPManager 1001-1222, _DeepepManager 1424-1455
MOE = """
layer(x):
    hidden = input_norm x
    attended = mixer hidden
    attended = remade attended, hidden
    drop hidden
    residual = add x, attended
    hidden = pre_mlp_norm residual
    mixed = mixture hidden
    mixed = remade mixed, hidden
    drop hidden
    y = add residual, mixed
    return y

pre_mlp_norm(residual):
    hidden = norm residual, g_mlp[h]
    return hidden

mixture(hidden):
    if shared_overlap == on
        mixed = experts hidden
        return mixed
    if m
        shared_out = shared_experts hidden
    mixed = experts hidden
    if m
        mixed = add mixed, shared_out
    return mixed

activation(gate_up, row_weights):
    product[g] = swiglu "weighted" gate_up, row_weights
    return product

experts(hidden):
    weights = route hidden, W_router[e h]
    if dispatcher == hybridep
        rows, row_weights, ranks_map, experts_map, routing_map = dispatch "hybridep" hidden, weights
        if shared_overlap == on
            if m
                shared_in = same hidden
                exchange region shared_in
                shared_product = shared_up shared_in
                drop shared_in
        gate_up = grouped_linear "fused" rows, W_fc1[c g+g h]
        product = activation gate_up, row_weights
        out = grouped_linear "fused" product, W_fc2[c h g]
        drop product
        mixed = combine "hybridep" out, ranks_map, experts_map, routing_map
        if shared_overlap == on
            if m
                shared_out = shared_down shared_product
                mixed = add "in-place" mixed, shared_out
        return mixed
    if dispatcher == deepep
        tokens, token_weights = dispatch "deepep" hidden, weights
        if shared_overlap == on
            if m
                shared_in = same hidden
                exchange region shared_in
                shared_product = shared_up shared_in
                drop shared_in
        rows, row_weights, row_map = rows_of tokens, token_weights
        drop tokens, token_weights
    else
        if shared_overlap == on
            if m
                shared_in = same hidden
                exchange region shared_in
        rows, row_weights, row_map = rows_of hidden, weights
        rows = to_experts rows
        if shared_overlap == on
            if m
                shared_product = shared_up shared_in
                drop shared_in
        row_weights = to_experts row_weights
        exchange expert_region rows
        exchange expert_region row_weights
        rows, row_weights = sort_rows rows, row_weights
    gate_up = grouped_linear "fused" rows, W_fc1[c g+g h]
    product = activation gate_up, row_weights
    out = grouped_linear "fused" product, W_fc2[c h g]
    drop product
    if dispatcher == deepep
        summed = tokens_of out, row_map
        drop out
        mixed = combine "deepep" summed
        if shared_overlap == on
            if m
                shared_out = shared_down shared_product
                mixed = add "in-place" mixed, shared_out
        return mixed
    returned = sort_rows out
    returned = sum_in_fp32 returned
    drop out
    returned = from_experts returned
    if shared_overlap == on
        if m
            shared_out = shared_down shared_product
    mixed = tokens_of returned, row_map
    if shared_overlap == on
        if m
            mixed = add "in-place" mixed, shared_out
    return mixed

shared_up(shared_in):
    gate_up = linear "duplicated" shared_in, W_shared_fc1[m+m h]
    product[m] = swiglu gate_up
    return product

shared_down(product):
    out = linear "duplicated" product, W_shared_fc2[h m]
    exchange region_end out
    return out

shared_experts(hidden):
    gate_up = linear "column" hidden, W_shared_fc1[m+m h]
    product[m] = swiglu gate_up
    out = linear "row" product, W_shared_fc2[h m]
    return out
"""

# megatron/core/transformer/multi_token_prediction.py:1331-1359
MTP_INPUT = """
mtp_input(x):
    embedded = embedding W_embedding[V h]
    exchange region_end embedded
    tokens = norm embedded, g_tokens[h]
    hidden = norm x, g_hidden[h]
    joined = concat tokens, hidden
    y = joined_linear joined, W_joined[j h+h]
    return y
"""

# megatron/core/models/gpt/gpt_model.py; tensor_parallel/cross_entropy.py:30, 70-72, 105-130, 181;
# fusions/fused_cross_entropy.py:66-86
HEAD = """
layer(x):
    hidden = norm x, g_final[h]
    logits = linear "head" hidden, W_head[V h]
    if cross_entropy == te-in-place
        loss = cross_entropy "te-in-place" logits
        return loss
    if cross_entropy == te-fp32
        loss = cross_entropy "te-fp32" logits
        return loss
    if cross_entropy == native-fused
        loss = cross_entropy "compiled" logits
        return loss
    loss = cross_entropy logits
    return loss
"""

# ---- buffers outside torch, sized once; a few KiB of flags and counters are left out

_DEEPEP = (
    "deepseek-ai/DeepEP@94a9f8f csrc/config.hpp:51-95, deep_ep/buffer.py:227-281, for Megatron's default of 20 SMs"
)
_HYBRIDEP = (
    "deepseek-ai/DeepEP@94a9f8f csrc/hybrid_ep/buffer/intranode.cu:190-260, internode_doca.cu:383-420, 557-582, bf16, "
    "one buffer for dispatch and combine"
)
# tokens that a receiver holds, the larger of dispatch and combine: ranks up to which, over NVLink, over RDMA
_DEEPEP_CHUNKS = ((8, 256, 0), (16, 288, 140), (32, 288, 128), (64, 288, 140), (128, 560, 132), (160, 720, 132))
_DEEPEP_META = 8 + 128 * 8 + 128 * 4 + 128 * 4  # source, up to 128 choices and their weights, up to 128 scales


def deepep_buffers(shape: StagingShape) -> int:
    """Bytes over NVLink (8 peers) and, beyond 8 ranks, over RDMA, for 10 channels of a fixed number of tokens."""
    _, near, far = next((row for row in _DEEPEP_CHUNKS if shape.ranks <= row[0]), _DEEPEP_CHUNKS[-1])
    token = 2 * shape.hidden + _DEEPEP_META
    peers, nodes = min(shape.ranks, 8), max(shape.ranks // 8, 1)
    nvlink = 10 * peers * (near * token + 4 * (2 * nodes + 3))
    rdma = 10 * nodes * 2 * (far * (token + 16) + 4 * 18) if far else 0
    return round_up(nvlink, 128) + round_up(rdma, 128)


def hybridep_buffers(shape: StagingShape) -> int:
    """Bytes for every token of every rank arriving here, and between domains for every token of this rank's peers."""
    tokens, domains = round_up(shape.tokens, 16), ceil_divide(shape.ranks, shape.domain)
    own = 2 * shape.hidden + 4 * (shape.hidden // 128)
    near, far = 4 * shape.experts * shape.domain, 4 * shape.experts * shape.ranks
    arriving = tokens * shape.ranks * (own + near)
    if domains == 1:
        return arriving
    combined = 2 * (2 * shape.hidden + near)
    return arriving + tokens * (own + far) + tokens * (domains - 1) * (own + near + combined)


_CUBLAS = (
    "NVIDIA/TransformerEngine@d0067d0da6cb transformer_engine/pytorch/cpp_extensions/gemm.py:40-67 (sm90 and later; "
    "4 MiB before)"
)
_WORKSPACE, _SMALL = 32 * 2**20 + 1024, {"sm80": 4 * 2**20}
# One for each handle and stream, from the caching allocator. The output layer is torch's own product
# (tensor_parallel/layers.py, `_linear_forward` and `backward`), forward under the handle of the main thread and back
# under that of autograd's: the pool hands them out by thread.
_TORCH_CUBLAS = (
    "pytorch/pytorch aten/src/ATen/cuda/CublasHandlePool.cpp, parseChosenWorkspaceSize: 4096 x 8 KiB from sm90 on, "
    "2 x 4096 + 8 x 16 KiB before, 128 MiB on gfx942 and gfx950; two handles, the main thread's and autograd's "
    "(CUBLAS_WORKSPACE_CONFIG sets it)"
)
_TORCH_WORKSPACE = 4096 * 8 * 1024
_TORCH_OTHERS = {"sm80": 4096 * 1024 * 2 + 16 * 1024 * 8, "gfx942": 128 * 2**20, "gfx950": 128 * 2**20}
_NO_PATH = "Megatron-Core trains dense MLA by expanding the latent; use form explicit, or profile reference"

_SPARSE = (
    "Megatron-Core trains models with an indexer in the absorbed form, with its sparse attention "
    "(experimental_attention_variant dsa), and that is not priced yet"
)

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
    refused={"absorbed": f"no absorbed training path: {_NO_PATH}", "laga": f"no gather of the latent: {_NO_PATH}"},
    sparse=_SPARSE,  # transformer/experimental_attention_variant/absorbed_mla.py, AbsorbedMLASelfAttention
    fixed={
        "v_layout": "contiguous",
        "norm": "fused",
        "softmax_dtype": "activation",
        "mask": "none",
        "moe_style": "fused",
    },
    needs={"r": "its MLA always rotates a part of query and key"},
    reentrant=True,  # tensor_parallel/random.py:600-690, CheckpointFunction.backward
    recomputes=("mla_up_proj", "layernorm", "moe_act"),
    losses=("native", "native-fused", "te-in-place", "te-fp32"),
    allowances=(
        Allowance("cuBLAS workspace", _WORKSPACE, _CUBLAS, on=_SMALL),
        Allowance(
            "cuBLAS workspaces of the grouped products",
            4 * _WORKSPACE,
            _CUBLAS,
            with_experts=True,
            on={arch: 4 * size for arch, size in _SMALL.items()},
        ),
        Allowance(
            "torch's cuBLAS workspaces of the output head",
            2 * _TORCH_WORKSPACE,
            _TORCH_CUBLAS,
            role="head",
            on={arch: 2 * size for arch, size in _TORCH_OTHERS.items()},
        ),
    ),
    shardings=("ddp", "distributed"),
    once_per_node=("deepep", "hybridep"),
    # scaled before they are reduced and zeroed for the next step: core/distributed/param_and_grad_buffer.py:666, 1621
    gradient_passes=3,
    reduced_fp32=True,  # transformer_engine/common/gemm/cublaslt_gemm.cu:448 of NVIDIA/TransformerEngine@d0067d0da6cb
    # its last input and that one's gradient: transformer/transformer_block.py, `set_input_tensor`, which nothing takes
    # back; pipeline_parallel/schedules.py, `backward_step`, where the gradient that is sent is the input's own `.grad`
    left_of_chunk=2,
    staging={"deepep": Staging(deepep_buffers, _DEEPEP), "hybridep": Staging(hybridep_buffers, _HYBRIDEP)},
    notes=(
        (
            "profile megatron prices what Megatron-Core with Transformer Engine keeps, read in their sources and not "
            "run here (docs/megatron.md)"
        ),
        "buffers stand for the whole run: --explain-term standing lists them",
    ),
)
