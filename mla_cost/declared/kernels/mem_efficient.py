"""PyTorch's memory-efficient attention (CUTLASS): any aligned width, but a key for every head."""

from mla_cost.declared.kernels.rounding import up
from mla_cost.language.program import FusedShape, Kernel, Limit

_CUTLASS = "pytorch/pytorch aten/src/ATen/native/transformers/cuda/sdp_utils.cpp, use_mem_efficient_attention"
_DTYPES = ("bf16", "fp16", "fp32")  # the same file: greater_than_or_equal_sm80_ and aotriton_mem_efficient_dtypes


def workspace(shape: FusedShape) -> int:
    """Bytes that the CUTLASS backward holds: one fp32 per row and, for heads wider than 128, tile sums.

    Tiles are 128 rows by 64 keys; keys are split to fill the device.
    """
    rows = 4 * shape.batch * shape.heads * shape.queries
    if max(shape.qk, shape.v) <= 128:
        return rows
    heads = shape.batch * shape.heads
    splits = max(1, min(-(-shape.keys // 64), 200 // heads))
    sums = 256 * splits * (up(shape.qk, 128) + up(shape.v, 128))
    tiles = -(-shape.queries // 128) * -(-shape.qk // 64) * 32784
    return rows + heads * (sums + tiles)


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
            ("sm80", "sm90", "sm100"),
            f"{_CUTLASS}; not run here",
            multiple_of=8,
            dtypes=_DTYPES,
        ),
        Limit(
            "PyTorch memory-efficient SDPA by AOTriton 0.12 or later",
            ("gfx942",),
            f"{_CUTLASS}; AOTriton 0.12 takes unequal widths up to 512",
            max_qk=512,
            max_v=512,
            multiple_of=8,
            dtypes=_DTYPES,
        ),
    ),
    source="pytorch/pytorch aten/src/ATen/native/transformers/cuda/attention.cu, _efficient_attention_forward",
    workspace=workspace,
    workspace_source="pytorch/pytorch aten/src/ATen/native/transformers/cuda/attention_backward.cu",
)
