"""FlashAttention-like kernels: q, k, v, the output and one fp32 log-sum-exp per row are kept."""

from mla_cost.language.fused_workspace import Workspace
from mla_cost.language.numbers import round_up
from mla_cost.language.program import Kernel, Limit

TEXT = """
attend(q, key, value):
    if value_padding == qk
        padded_value = pad value, key
        padded_o = fused "keep log-sum-exp: fp32 bns" q, key, padded_value
        o = cut padded_o, value
        return o
    o = fused "keep log-sum-exp: fp32 bns" q, key, value
    return o
"""
# each takes fp16 and bf16 (some fp8 in forward): flash_api.cpp:842, hopper/flash_api.cpp:548, 716, fused_attn.cpp:296,
# cute/interface.py:2062, sdp_utils.cpp (greater_than_or_equal_sm80_flash_dtypes); FlashMLA as noted
LIMITS = (
    Limit(
        "FlashAttention-2",
        ("sm80", "sm90", "sm100", "sm103", "gfx942", "gfx950"),
        "Dao-AILab/flash-attention@0251105a csrc/flash_attn/flash_api.cpp:439,868,881; on gfx942 and gfx950 its CK "
        "build, whose README names MI300x and MI355x",
        max_qk=256,
        max_v=256,
        equal=True,
        multiple_of=8,
    ),
    Limit(
        "cuDNN 9.5 or later through Transformer Engine",
        ("sm90",),
        "NVIDIA/TransformerEngine@d0067d0d transformer_engine/common/fused_attn/fused_attn.cpp:296-353",
        only=((192, 128),),
        note="9.10.0 and 9.10.1 excluded",
    ),
    Limit(
        "cuDNN 9.11 or later through Transformer Engine",
        ("sm100", "sm103"),  # sm_arch_ >= 100
        "NVIDIA/TransformerEngine@d0067d0d transformer_engine/common/fused_attn/fused_attn.cpp:296-353",
        only=((192, 128),),
    ),
    Limit(
        "FlashAttention-3",
        ("sm90",),
        "Dao-AILab/flash-attention hopper/flash_api.cpp:782-787 and pull request 1604 (backward for 192/128)",
        only=((192, 128),),
    ),
    Limit(
        "FlashAttention-4",
        ("sm90", "sm100", "sm103"),
        "Dao-AILab/flash-attention flash_attn/cute/interface.py, commits 156137b1 (sm100) and 71bf77c8 (sm90); "
        "sm103 runs what sm100 does (NovaSky-AI/SkyRL pull request 2132)",
        only=((192, 128),),
    ),
    Limit(
        "FlashMLA dense prefill",
        ("sm100",),
        "deepseek-ai/FlashMLA@9241ae3 README and csrc/sm100/prefill/dense",
        only=((192, 128),),
        dtypes=("bf16",),  # csrc/sm100/prefill/dense/fmha_cutlass_bwd_sm100.cu:43
    ),
    Limit(
        "PyTorch flash SDPA by AOTriton 0.9 or later",
        ("gfx942",),
        "pytorch/pytorch aten/src/ATen/native/transformers/hip, sdp_utils; one width up to 512",
        max_qk=512,
        max_v=512,
        equal=True,
    ),
    Limit(
        "cuDNN through Transformer Engine",
        ("sm80",),
        "NVIDIA/TransformerEngine@d0067d0d transformer_engine/common/fused_attn/fused_attn.cpp:296-353",
        max_qk=128,
        max_v=128,
    ),
)


def width(qk: int, v: int) -> int:
    """Both widths round up to 32 where they are up to 128 wide, else to 64."""
    widest = max(qk, v)
    return round_up(widest, 32 if widest <= 128 else 64)


# FlashAttention-2's backward: fp32 sums of the query gradient and one fp32 per row, rows rounded up to 128. Other
# implementations differ a little.
WORKSPACE = Workspace(
    "4*batch*heads*rows*width + 4*batch*heads*rows", rows=lambda queries: round_up(queries, 128), width=width
)


KERNEL = Kernel(
    name="flash",
    title="fused attention that keeps q, k, v, output and log-sum-exp",
    text=TEXT,
    shared_text=None,
    shared_refusal="none trains a dense shared key of latent width (Dao-AILab/flash-attention issue 2672)",
    fused=True,
    limits=LIMITS,
    source="Dao-AILab/flash-attention@0251105a flash_attn/flash_attn_interface.py, FlashAttnFunc.forward",
    workspace=WORKSPACE,
    workspace_source="Dao-AILab/flash-attention@0251105a csrc/flash_attn/flash_api.cpp, mha_bwd",
)
