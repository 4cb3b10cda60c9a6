"""PyTorch's memory-efficient attention (CUTLASS): any aligned width, but a key for every head."""

from mla_cost.program import Kernel

KERNEL = Kernel(
    name="mem-efficient",
    title="memory-efficient attention; a shared key is copied to every head first",
    text="""
attend(q, key, value):
    if value_padding == qk
        padded_value = pad value, key
        padded_o = fused "keep log-sum-exp: fp32 bns" q, key, padded_value
        o = cut padded_o, value
        return o
    o = fused "keep log-sum-exp: fp32 bns" q, key, value
    return o
""",
    shared_text="""
attend(q, key, value):
    key_view = expand key, q
    key_heads = contiguous key_view
    drop key_view
    if r
        value_heads[d_c] = slice key_heads
        o = fused "keep log-sum-exp: fp32 bns" q, key_heads, value_heads
    else
        o = fused "keep log-sum-exp: fp32 bns" q, key_heads, key_heads
    return o
""",
    fused=True,
    limits=(),
    source="",
)
