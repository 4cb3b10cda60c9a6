"""Ulysses around an attention call that was handed V padded to the width of K: every exchange is k + r wide."""

from mla_cost.declared.schemes.requirements import HEADS, NARROW_VALUES, SEQUENCE
from mla_cost.language.program import Scheme

SCHEME = Scheme(
    name="ulysses-padded",
    title="all-to-all of q, k, and of v and the output at the width of k",
    moves={
        "query": "sequence_to_heads",
        "key": "sequence_to_heads",
        "padded_value": "sequence_to_heads",
        "output": 'heads_to_sequence, cut_to "v"',
    },
    requires=(SEQUENCE, HEADS, NARROW_VALUES),
    text="""
keys_values(latent, k_rope, w):
    kv[S b n k+v] = linear latent, w
    k_nope[k], value[v] = split kv
    k_rope_heads = expand k_rope, k_nope
    key[S b n k+r] = concat k_nope, k_rope_heads
    value = pad value, key
    exchange padded_value value
    return key, value
""",
    systems=("Hugging Face flash path under ms-swift", "verl's general path"),
    use="only where the attention call takes one width: it sends 1.2 times what Ulysses does",
    source="modelscope/ms-swift@3602360a swift/sequence_parallel/ulysses.py:56-110; verl-project/verl@1dda039b "
    "verl/models/transformers/monkey_patch.py:131-133",
)
