"""Ascend's npu_fusion_attention: it keeps the softmax maximum and sum, eight fp32 wide each.

V is padded to the width of Q and K by default; MindSpeed-LLM's switch `--mla-fa-without-pad` (CANN 8.2.RC1 or later)
leaves it as it is: here `value_padding: none`. A shared key is one key head (MQA) and is not padded.
"""

from mla_cost.declared.kernels.rounding import up
from mla_cost.language.program import FusedShape, Kernel, Limit

_KEEP = '"keep softmax max: fp32 bns8" "keep softmax sum: fp32 bns8"'


def workspace(shape: FusedShape) -> int:
    """Bytes that the backward holds (template SameAB): fp32 sums of all three gradients, widths rounded up to 16."""
    query = shape.batch * shape.queries * shape.heads
    keys = shape.batch * shape.keys * shape.key_heads
    return 65536 + 4 * (up(shape.qk, 16) * query + (up(shape.qk, 16) + up(shape.v, 16)) * keys) + 32 * query


KERNEL = Kernel(
    name="npu-fusion",
    title="npu_fusion_attention; keeps softmax max and sum, pads V to the width of Q and K",
    text=f"""
attend(q, key, value):
    if value_padding == qk
        padded_value = pad value, key
        padded_o = fused {_KEEP} q, key, padded_value
        o = cut padded_o, value
        return o
    o = fused {_KEEP} q, key, value
    return o
""",
    shared_text=f"""
attend(q, key, value):
    o = fused {_KEEP} q, key, value
    return o
""",
    fused=True,
    limits=(
        Limit(
            "npu_fusion_attention",
            ("910b", "910c"),
            "Ascend documentation of FlashAttentionScore and its gradient: Dq = Dk >= Dv up to 768 (older CANN 512), "
            "query heads a multiple of key heads; absorbed widths lie inside these limits, not run",
            max_qk=768,
            max_v=768,
            at_most_qk=True,
            dtypes=(
                "bf16",
                "fp16",
                "fp32",
            ),  # op-plugin, docs/zh/custom_APIs/torch_npu/torch_npu-npu_fusion_attention.md
        ),
    ),
    value_padding="qk",
    source="Ascend/op-plugin@517f2e7d FlashAttentionKernelNpu; Ascend/MindSpeed-LLM@c77308a1 mla-fa-without-pad",
    workspace=workspace,
    workspace_source="recursion-ascend/ops-transformer@a093e954 (mirror), flash_attention_score_grad tiling, SameAB",
)
