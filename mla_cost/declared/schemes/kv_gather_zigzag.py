"""KV gather with the sequence dealt zig-zag: torchtitan's with its head-tail load balancer."""

from mla_cost.declared.schemes.kv_gather import SCHEME as GATHER
from mla_cost.declared.schemes.requirements import HALVES

SCHEME = GATHER._replace(
    name="kv-gather-zigzag",
    title="all-gather of k and v, kept; every rank has two chunks of the sequence, one from each end",
    requires=(HALVES,),
    deal="zig-zag",
    offered=False,
    systems=("torchtitan with the headtail load balancer",),
    use="as kv-gather, with causal work even over ranks",
    source="pytorch/torchtitan@b5bcd76c torchtitan/models/common/decoder_sharding.py:276-284",
)
