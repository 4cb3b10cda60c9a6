"""Ascend's npu_fusion_attention: it keeps the softmax maximum and sum, eight fp32 wide each.

V is padded to the width of Q and K by default; MindSpeed-LLM's switch `--mla-fa-without-pad` (CANN 8.2.RC1 or later)
leaves it as it is: here `value_padding: none`. A shared key is one key head (MQA) and is not padded.
"""

from mla_cost.language.fused_workspace import Workspace
from mla_cost.language.numbers import round_up
from mla_cost.language.program import Kernel, Limit

_KEEP = '"keep softmax max: fp32 bns8" "keep softmax sum: fp32 bns8"'


# template SameAB: fp32 sums of all three gradients, widths rounded up to 16, and 32 bytes a row. Its fixed part, 60 MiB
# and 2 MiB a vector core of the device, is not priced yet (docs/decisions/0015)
WORKSPACE = Workspace(
    "65536 + 32*batch*heads*queries + 4*batch*heads*queries*qk_up + 4*batch*key_heads*keys*qk_up"
    " + 4*batch*key_heads*keys*v_up",
    qk_up=lambda qk: round_up(qk, 16),
    v_up=lambda v: round_up(v, 16),
)


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
    workspace=WORKSPACE,
    workspace_source="recursion-ascend/ops-transformer@a093e954 (mirror), flash_attention_score_grad tiling, SameAB",
)
