"""Muon as Megatron-Core runs it: one momentum for matrices, orthogonalised by Newton-Schulz; Adam for all else.

Matrices are weights of two dims that belong to no vocabulary, each expert's by itself (NVIDIA/Megatron-LM@d98e8a64
optimizer/emerging_optimizers.py:132-140, optimizer/layer_wise_optimizer.py:40-57). With the distributed optimizer each
goes whole to one rank, which keeps its master weight and momentum (layer_wise_optimizer.py:150-175, arguments.py:1727).

What one update has alive (NVIDIA-NeMo/Emerging-Optimizers@116b71a4 orthogonalized_optimizer.py step; Megatron's
scaled_orthogonalize_fn, emerging_optimizers.py:197-226, and newton_schulz of muon_utils.py, in `medium` precision): the
normalised momentum in fp32, its copy in bf16 and the next, two square matrices of the short side in bf16 (at most as
large as the matrix, where tp splits it), the result in fp32 and its two products with scales. Over tp in mode
`duplicated` (the default) the parts gathered and joined beside.
"""

from mla_cost.declared.states import Optimizer, StateTensor


def making(rows: int, columns: int, tp: int) -> int:
    """Bytes at the most of three moments: into bf16, a step of the iteration, the result times its scales."""
    full, short = rows * columns * tp, min(rows, columns) * tp
    gathered = 8 * full if tp > 1 else 0
    step = gathered + 4 * full + 4 * min(short * short, full)
    scaled = 4 * full + 8 * rows * columns
    return max(gathered + 6 * full, step, scaled)


OPTIMIZER = Optimizer(
    name="muon",
    title="one momentum for matrices, Adam for vectors and vocabularies",
    source="NVIDIA/Megatron-LM@d98e8a64 optimizer/emerging_optimizers.py; Keller Jordan; arXiv 2502.16982",
    tensors=(
        StateTensor("momentum_buffer", of="matrices"),
        StateTensor("exp_avg", of="others"),
        StateTensor("exp_avg_sq", of="others"),
    ),
    making=making,
    whole=("ddp", "distributed"),
    note=(
        "optimizer muon: each matrix goes whole to one rank and an even share is priced, so the fullest rank has more; "
        "the update of the largest dense matrix is counted in the step"
    ),
)
