"""Ring from one's own: backward starts at the rank's own keys and values, and fp32 gradients go all the way home."""

from mla_cost.declared.schemes.requirements import HALVES
from mla_cost.language.program import Scheme

SCHEME = Scheme(
    name="ring-own",
    title="k and v passed from rank to rank; backward starts from the own ones, gradients in fp32 go P hops, home",
    moves={},
    requires=(HALVES,),
    attends='around "move hops" "saved own" "back home" "gradients fp32" "alive sliced"',
    deal="zig-zag",
    systems=(
        "zhuzilin/ring-flash-attention",
        "yunchang",
        "ms-swift",
        "PyTorch context_parallel with alltoall rotation",
    ),
    use="where these libraries run attention: fp32 gradients make backward 1.64 times a bf16 ring's at 8 ranks",
    source="zhuzilin/ring-flash-attention@8996282 ring_flash_attn/zigzag_ring_flash_attn.py:7-199; "
    "feifeibear/long-context-attention@56118e0d yunchang/ring/zigzag_ring_flash_attn.py; "
    "modelscope/ms-swift@3602360a swift/sequence_parallel/zigzag_ring_attn.py:305-576; "
    "pytorch/pytorch@09b101c5 torch/distributed/tensor/experimental/_context_parallel/_attention.py; "
    "mlc-ai/pith-train@889a4088 pithtrain/operators/ring_attention.py:143-280",
    paper="arXiv 2310.01889",
)
