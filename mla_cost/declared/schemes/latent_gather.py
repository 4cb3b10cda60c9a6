"""Latent gather: q crosses by all-to-all, the shared latent by one all-gather; weights are each rank's own heads."""

from mla_cost.declared.schemes.requirements import HEADS, SEQUENCE
from mla_cost.language.program import Scheme

SCHEME = Scheme(
    name="latent-gather",
    title="all-to-all of q and the output, all-gather of the latent",
    moves={"query": "sequence_to_heads", "latent": "gather", "weights": "own_heads", "output": "heads_to_sequence"},
    requires=(SEQUENCE, HEADS),
    use="while a rank keeps two heads or more: it sends less than Ulysses (320 l > 576 at DeepSeek-V3's widths)",
    source="mindspore-ai/hyper-parallel issue 951 (open), latent_kv_head; arXiv 2607.17644, table 1",
    offered=True,
)
