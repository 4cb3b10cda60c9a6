"""verl's Ulysses for Kimi-VL: the rope key in one copy a rank; V padded after its exchange, so the output is wide."""

from mla_cost.declared.schemes.requirements import HEADS, NARROW_VALUES, SEQUENCE
from mla_cost.language.program import Scheme

SCHEME = Scheme(
    name="ulysses-rope-copies",
    title="all-to-all of q, k without rope, v and the padded output; the rope key in one copy for each rank",
    moves={
        "query": "sequence_to_heads",
        "nope_key": "sequence_to_heads",
        "rope_key": "gather",
        "unpadded_value": "sequence_to_heads",
        "output": 'heads_to_sequence, cut_to "v"',
    },
    requires=(SEQUENCE, HEADS, NARROW_VALUES),
    text="""
keys_values(latent, k_rope, w):
    kv[S b n k+v] = linear latent, w
    k_nope[k], value[v] = split kv
    exchange nope_key k_nope
    exchange rope_key k_rope
    k_rope_heads = expand k_rope, k_nope
    key[S b n k+r] = concat k_nope, k_rope_heads
    exchange unpadded_value value
    value = pad value, key
    return key, value
""",
    systems=("verl verl/models/transformers/kimi_vl.py",),
    use="where verl runs Kimi-VL",
    source="verl-project/verl@1dda039b verl/models/transformers/kimi_vl.py:132-155",
    notes=("an all-to-all of one copy of the rope key for each rank sends what a gather does, and is reported as one",),
)
