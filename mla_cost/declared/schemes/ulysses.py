"""Ulysses: all-to-all of q, k and v from sequence shards to head shards, and of the output back."""

from mla_cost.declared.schemes.requirements import HEADS, SEQUENCE
from mla_cost.language.program import Scheme

SCHEME = Scheme(
    name="ulysses",
    title="all-to-all of q, k, v and the output between sequence and head shards",
    moves={"query": "heads_out", "key": "heads_out", "value": "heads_out", "output": "heads_in"},
    requires=(SEQUENCE, HEADS),
    source="arXiv 2309.14509 (DeepSpeed-Ulysses)",
)
