"""Ulysses with the rope key sent once: it has no heads, so it is gathered and shown to each rank's heads."""

from mla_cost.declared.schemes.requirements import HEADS, SEQUENCE
from mla_cost.language.program import Scheme

SCHEME = Scheme(
    name="ulysses-headless",
    title="all-to-all of q, k without rope, v and the output; all-gather of the one rope key",
    moves={
        "query": "sequence_to_heads",
        "nope_key": "sequence_to_heads",
        "rope_key": "gather",
        "value": "sequence_to_heads",
        "output": "heads_to_sequence",
    },
    requires=(SEQUENCE, HEADS),
    text="""
keys_values(latent, k_rope, w):
    kv[S b n k+v] = linear latent, w
    k_nope[k], value[v] = split kv
    exchange nope_key k_nope
    exchange rope_key k_rope
    k_rope_heads = expand k_rope, k_nope
    key[S b n k+r] = concat k_nope, k_rope_heads
    return key, value
""",
    systems=("torchtitan pull requests 4313 and 4760",),
    use="in place of Ulysses: the rope key goes once and not once for every head",
    source="pytorch/torchtitan pull request 4313 (open): its description",
)
