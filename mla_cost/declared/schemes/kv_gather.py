"""KV gather: every rank keeps its own queries and all heads; keys and values cross by all-gather."""

from mla_cost.declared.schemes.requirements import SEQUENCE
from mla_cost.language.program import Scheme

SCHEME = Scheme(
    name="kv-gather",
    title="all-gather of k and v; queries and output stay where they are",
    moves={"key": "gather", "value": "gather"},
    requires=(SEQUENCE,),
    use="where memory allows all keys and values to stay: backward sends half of what gathering again does",
    source="pytorch/torchtitan@b5bcd76c torchtitan/models/common/decoder_sharding.py:276-284; "
    "Ash-Zheng/WLB-LLM-CP@7e1d5d4 per_doc_cp_attn.py:76-219",
    offered=True,
)
