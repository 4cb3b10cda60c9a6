"""USP around an attention call that was handed V padded to the width of K: exchanges and hops are k + r wide."""

from mla_cost.declared.schemes.requirements import NARROW_VALUES
from mla_cost.declared.schemes.ulysses_padded import SCHEME as PADDED
from mla_cost.declared.schemes.usp import SCHEME as USP

SCHEME = USP._replace(
    name="usp-padded",
    title="all-to-all of q, k, and of v and the output at the width of k, inside groups; hops of both between them",
    moves=PADDED.moves,
    text=PADDED.text,
    requires=(*USP.requires, NARROW_VALUES),
    systems=("Hugging Face flash path under ms-swift where sp goes beyond its key heads",),
    use="only where the attention call takes one width",
    source="modelscope/ms-swift@3602360a swift/sequence_parallel/sequence_parallel.py:344, ulysses.py:56-110, "
    "zigzag_ring_attn.py:305-576",
)
