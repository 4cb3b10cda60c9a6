"""Llama-3 style: keys and values gathered one head at a time in two buffers, again in backward."""

from mla_cost.declared.schemes.requirements import SEQUENCE
from mla_cost.language.program import Scheme

SCHEME = Scheme(
    name="gather-heads",
    title="all-gather of k and v, one head in hand and one on its way; again in backward, gradients scattered",
    moves={},
    requires=(SEQUENCE,),
    attends='around "move heads" "saved own" "back scatter" "gradients as-keys" "alive one-head"',
    systems=("zhuzilin llama3_flash_attn_varlen with heads_k_stride 1",),
    use="where a gather's buffers are too large and ranks hold whole documents",
    source="zhuzilin/ring-flash-attention@8996282 ring_flash_attn/llama3_flash_attn_varlen.py:66-299",
    paper="arXiv 2407.21783, section 3.3.2",
    notes=("ranks hold neighbouring positions, so causal work is uneven: the busiest rank has up to twice the mean",),
)
