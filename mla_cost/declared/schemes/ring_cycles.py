"""TASP: every chunk in P - 1 pieces, each going round on its own Hamiltonian cycle, so that all links carry alike."""

from mla_cost.declared.schemes.requirements import HALVES
from mla_cost.language.program import Requirement, Scheme

FOURS = Requirement(
    "divides", "sp", "four", "the cycles are laid out for groups of four ranks, and 4 does not divide sp {sp}"
)
SCHEME = Scheme(
    name="ring-cycles",
    title="k and v in P - 1 pieces, each on a cycle of its own: a ring's bytes, spread over all links",
    moves={},
    requires=(HALVES, FOURS),
    attends='around "move hops" "saved last" "back along" "gradients as-keys" "alive two"',
    deal="zig-zag",
    basis="derived",
    systems=("TASP (HamiltonAttention)", "MindSpeed hamilton_context_parallel (not causal)"),
    use="where every rank has a link to every other",
    source="arXiv 2509.26541; infinigence/HamiltonAttention@86606900",
    notes=("each link carries one chunk in all, where a ring sends P - 1 over one link; no cost of links is reported",),
)
