"""USP: heads are exchanged inside groups, keys and values go round between them and fp32 gradients all the way home."""

from mla_cost.declared.schemes.requirements import HALVES_OUTSIDE, HEADS_INSIDE, INSIDE, SEQUENCE
from mla_cost.declared.schemes.ring_own import SCHEME as RING
from mla_cost.declared.schemes.ulysses import SCHEME as ULYSSES
from mla_cost.language.program import Scheme

SCHEME = Scheme(
    name="usp",
    title="all-to-all of q, k, v and the output inside groups; k and v round between them, fp32 gradients home",
    moves=ULYSSES.moves,
    requires=(SEQUENCE, INSIDE, HEADS_INSIDE, HALVES_OUTSIDE),
    attends=RING.attends,
    inside="heads",
    deal="zig-zag",
    systems=("yunchang LongContextAttention", "ms-swift (sp_inside is gcd of KV heads and sp)"),
    use="where sp goes beyond the heads or a node and these libraries run attention",
    source="feifeibear/long-context-attention@56118e0d yunchang/hybrid/attn_layer.py:111-156; "
    "modelscope/ms-swift@3602360a swift/sequence_parallel/sequence_parallel.py:344",
    paper="arXiv 2405.07719",
)
