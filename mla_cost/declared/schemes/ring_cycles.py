"""TASP: every chunk in P - 1 pieces, each going round on its own Hamiltonian cycle, so that all links carry alike."""

from mla_cost.declared.schemes.requirements import HALVES
from mla_cost.language.program import Scheme

SCHEME = Scheme(
    name="ring-cycles",
    title="k and v in P - 1 pieces, each on a cycle of its own: a ring's bytes, spread over all links",
    moves={},
    requires=(HALVES,),
    attends='around "move cycles" "saved last" "back along" "gradients as-keys" "alive two"',
    deal="zig-zag",
    basis="derived",
    systems=("TASP (HamiltonAttention)", "MindSpeed hamilton_context_parallel (not causal)"),
    use="where every rank has a link to every other",
    source="infinigence/HamiltonAttention@86606900 H100-1/hamilton_attention.py:177-264, forward only; "
    "Ascend/MindSpeed@028de58c "
    "mindspeed/te/pytorch/attention/dot_product_attention/hamilton_context_parallel.py:16-222, forward and "
    "backward, not causal, K and V of one width",
    paper="arXiv 2509.26541",
    notes=(
        "its code lays cycles out for 8 ranks and more, multiples of 4; the bytes hold for any number",
        "each link carries one chunk in all, where a ring sends P - 1 over one link: `compare` tells both",
    ),
)
