"""The basic ring of own chunks: ranks hold neighbouring positions, so the last one attends to most."""

from mla_cost.declared.schemes.requirements import SEQUENCE
from mla_cost.declared.schemes.ring_own import SCHEME as RING

SCHEME = RING._replace(
    name="ring-own-contiguous",
    title="as ring-own with neighbouring positions on a rank: causal work is uneven, and chunks are handed on whole",
    requires=(SEQUENCE,),
    attends='around "move hops" "saved own" "back home" "gradients fp32" "alive two"',
    deal="contiguous",
    systems=("zhuzilin ring_flash_attn_func", "yunchang basic ring"),
    use="for attention that is not causal, or where the order of the sequence has to stay",
    source="zhuzilin/ring-flash-attention@8996282 ring_flash_attn/ring_flash_attn.py",
)
