"""FlashAttention-like kernels: q, k, v, the output and one fp32 log-sum-exp per row are kept."""

from mla_cost.program import Kernel

KERNEL = Kernel(
    name="flash",
    title="fused attention that keeps q, k, v, output and log-sum-exp",
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
    shared_text=None,
    shared_refusal="it needs a key and a value for every head",
    fused=True,
    limits=(),
    source="",
)
