"""KV gather with the rope key sent once: it has no heads, so it is gathered by itself and shown to all heads."""

from mla_cost.declared.schemes.requirements import SEQUENCE
from mla_cost.declared.schemes.ulysses_headless import SCHEME as ULYSSES

SCHEME = ULYSSES._replace(
    name="kv-gather-headless",
    title="all-gather of k without rope, of v and of the one rope key; queries and output stay where they are",
    moves={"nope_key": "gather", "rope_key": "gather", "value": "gather"},
    requires=(SEQUENCE,),
    systems=("torchtitan pull request 4313, MLAAllGatherCPFlexAttention",),
    use="in place of kv-gather: the rope key goes once and not once for every head",
)
