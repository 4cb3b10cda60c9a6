"""PyTorch's memory-efficient attention (CUTLASS): any aligned width, but a key for every head."""

from mla_cost.language.fused_workspace import Workspace
from mla_cost.language.numbers import ceil_divide, maximum, minimum, round_up
from mla_cost.language.program import Kernel, Limit

_CUTLASS = "pytorch/pytorch aten/src/ATen/native/transformers/cuda/sdp_utils.cpp, use_mem_efficient_attention"
_DTYPES = ("bf16", "fp16", "fp32")  # the same file: greater_than_or_equal_sm80_ and aotriton_mem_efficient_dtypes


def splits(batch: int, heads: int, keys: int) -> int:
    """Into how many parts keys are split to fill the device."""
    return maximum(1, minimum(ceil_divide(keys, 64), 200 // (batch * heads)))


# the CUTLASS backward: one fp32 per row and, for heads wider than 128, sums of tiles of 128 rows by 64 keys
WORKSPACE = Workspace(
    "4*batch*heads*queries + 256*batch*heads*wide*splits*sums + 32784*batch*heads*wide*tiles",
    wide=lambda qk, v: int(max(qk, v) > 128),
    splits=splits,
    sums=lambda qk, v: round_up(qk, 128) + round_up(v, 128),
    tiles=lambda queries, qk: ceil_divide(queries, 128) * ceil_divide(qk, 64),
)


KERNEL = Kernel(
    name="mem-efficient",
    title="memory-efficient attention; a shared key is copied to every head first",
    text="""
attend(q, key, value):
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
    limits=(
        Limit(
            "PyTorch memory-efficient SDPA",
            ("sm80", "sm90", "sm100", "sm103"),
            f"{_CUTLASS}; not run here",
            multiple_of=8,
            dtypes=_DTYPES,
        ),
        Limit(
            "PyTorch memory-efficient SDPA by AOTriton 0.12 or later",
            ("gfx942", "gfx950"),
            f"{_CUTLASS}; AOTriton 0.12 takes unequal widths up to 512",
            max_qk=512,
            max_v=512,
            multiple_of=8,
            dtypes=_DTYPES,
        ),
    ),
    source="pytorch/pytorch aten/src/ATen/native/transformers/cuda/attention.cu, _efficient_attention_forward",
    workspace=WORKSPACE,
    workspace_source="pytorch/pytorch aten/src/ATen/native/transformers/cuda/attention_backward.cu",
)
