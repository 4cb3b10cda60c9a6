"""Ascend's npu_fusion_attention: it keeps the softmax maximum and sum, eight fp32 wide each."""

from mla_cost.program import Kernel

KERNEL = Kernel(
    name="npu-fusion",
    title="npu_fusion_attention; keeps softmax max and sum, pads V to the width of Q and K",
    text="""
attend(q, key, value):
    if value_padding == qk
        padded_value = pad value, key
        padded_o = fused "keep softmax max: fp32 bns8" "keep softmax sum: fp32 bns8" q, key, padded_value
        o = cut padded_o, value
        return o
    o = fused "keep softmax max: fp32 bns8" "keep softmax sum: fp32 bns8" q, key, value
    return o
""",
    shared_text=None,
    shared_refusal="it needs a key and a value for every head",
    fused=True,
    limits=(),
    value_padding="qk",
    source="",
)
