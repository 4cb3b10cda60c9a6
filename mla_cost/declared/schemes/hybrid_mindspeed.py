"""MindSpeed's hybrid: heads are exchanged inside groups, its ring goes round between them."""

from mla_cost.declared.schemes.requirements import HALVES_OUTSIDE, HEADS_INSIDE, INSIDE, SEQUENCE
from mla_cost.declared.schemes.ring_mindspeed import SCHEME as RING
from mla_cost.declared.schemes.ulysses import SCHEME as ULYSSES
from mla_cost.language.program import Scheme

SCHEME = Scheme(
    name="hybrid-mindspeed",
    title="all-to-all of q, k, v and the output inside groups; k and v round between them, gradients in their dtype",
    moves=ULYSSES.moves,
    requires=(SEQUENCE, INSIDE, HEADS_INSIDE, HALVES_OUTSIDE),
    attends=RING.attends,
    inside="heads",
    deal="zig-zag",
    systems=("MindSpeed --context-parallel-algo hybrid_cp_algo with --ulysses-degree-in-cp",),
    use="on Ascend, where sp goes beyond the heads or a node",
    source="Ascend/MindSpeed@028de58c docs/zh/features/hybrid-context-parallel.md",
    paper="arXiv 2405.07719",
)
