"""Ulysses: all-to-all of q, k and v from sequence shards to head shards, and of the output back."""

from mla_cost.declared.schemes.requirements import HEADS, SEQUENCE
from mla_cost.language.program import Scheme

SCHEME = Scheme(
    name="ulysses",
    title="all-to-all of q, k, v and the output between sequence and head shards",
    moves={
        "query": "sequence_to_heads",
        "key": "sequence_to_heads",
        "value": "sequence_to_heads",
        "output": "heads_to_sequence",
    },
    requires=(SEQUENCE, HEADS),
    use="up to as many ranks as heads, inside fast links",
    source="deepspeedai/DeepSpeed@edaa7221 deepspeed/runtime/sequence_parallel/ulysses_sp.py; "
    "NVIDIA/TransformerEngine@d0067d0d "
    "transformer_engine/pytorch/attention/dot_product_attention/context_parallel.py:4170-4576",
    paper="arXiv 2309.14509",
    profiles=("reference", "megatron"),
    offered=True,
)
