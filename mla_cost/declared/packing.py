"""How systems deal packed documents to ranks, and what of them travels: a row each, by three words.

deal: `contiguous` (neighbouring tokens of the pack), `zigzag` (two chunks of the pack, one from each end),
`per-document` (two chunks of every document, filled up to a multiple of 2 P), `whole` (documents as they are, longest
first, to the rank with the fewest tokens), `equal` (the same, cut until ranks have equal tokens). reach: which tokens
travel: `all`, `not-last` (those of shards that are not the last of their document, filled up to the largest rank's),
`needed` (those that a later token of the document elsewhere reads). degree: `fixed`, or as many ranks as a length needs
under a limit: `doubling`, `any`.
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

Dealt = Literal["contiguous", "zigzag", "per-document", "whole", "equal"]
Reach = Literal["all", "not-last", "needed"]
Degree = Literal["fixed", "doubling", "any"]
Basis = Literal["stated", "derived", "inferred"]


class Packing(NamedTuple):
    """One way to deal documents. basis: of what travels."""

    name: str
    title: str
    deal: Dealt
    reach: Reach
    basis: Basis
    source: str
    degree: Degree = "fixed"


_ROWS: Final = (
    Packing(
        "pack-contiguous", "the pack as one sequence, neighbouring tokens on a rank", "contiguous", "all", "derived",
        "zhuzilin/ring-flash-attention llama3_flash_attn_varlen.py",
    ),
    Packing(
        "pack-zigzag", "the pack as one sequence, zig-zag", "zigzag", "all", "derived",
        "pytorch/torchtitan@b5bcd76c, head-tail",
    ),
    Packing(
        "per-document", "every document in 2 P chunks, padded", "per-document", "all", "stated",
        "NVIDIA/TransformerEngine@d0067d0d (THD); WLB-LLM: Ash-Zheng/WLB-LLM-CP@d3b2c1fb",
    ),
    Packing(
        "whole-documents", "documents as they are, to the rank with the fewest tokens", "whole", "needed", "derived",
        "arXiv 2606.08476, first step of its heuristic",
    ),
    Packing(
        "flashcp", "whole documents, cut until tokens are equal; shards that are not the last travel", "equal",
        "not-last", "stated",
        "arXiv 2606.08476, equations 3 to 5; its last step, which cuts the longest document further, is left out",
    ),
    Packing(
        "needed-only", "zig-zag, and only what is read travels", "zigzag", "needed", "derived",
        "SandAI-org/MagiAttention@2c641357; chenyu-jiang/dcp@942a2c7c, with zig-zag in place of their plans",
    ),
    Packing(
        "hybrid-cp", "each document on as many ranks as its length needs, powers of two", "per-document", "all",
        "stated", "NVIDIA/Megatron-LM@d98e8a64 megatron/core/pipeline_parallel/hybrid_cp_schedule.py (not for MLA)",
        "doubling",
    ),
    Packing(
        "dynamic-groups", "each document on as many ranks as its length needs, any number", "per-document", "all",
        "inferred", "arXiv 2502.21231 (ByteScale), arXiv 2602.21788 (FCP): abstracts; arXiv 2412.01523 (FlexSP)",
        "any",
    ),
)  # fmt: skip
PACKINGS: Final = {row.name: row for row in _ROWS}
