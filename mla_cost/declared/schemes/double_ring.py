"""Double ring: windows of ranks turn inside while their chunks go on to the next window."""

from mla_cost.declared.schemes.requirements import HALVES, INSIDE
from mla_cost.language.program import Scheme

SCHEME = Scheme(
    name="double-ring",
    title="k and v turn inside windows of sp_inside ranks, P/w (w - 1) hops, and go between them, P/w - 1 hops",
    moves={},
    requires=(HALVES, INSIDE),
    attends='around "move windows" "saved last" "back along" "gradients as-keys" "alive three"',
    inside="window",
    deal="zig-zag",
    systems=("LoongTrain", "MindSpeed --cp-window-size"),
    use="where a ring goes over several nodes: most of its hops stay inside",
    source="Ascend/MindSpeed@028de58c "
    "mindspeed/core/context_parallel/ring_context_parallel/ring_context_parallel.py:922-1190; "
    "docs/zh/features/double-ring.md",
    paper="arXiv 2406.18485",
)
