"""How systems deal packed documents to ranks, and what of them travels: a row each, by three words.

deal: `contiguous` (neighbouring tokens of the pack), `zigzag` (two chunks of the pack, one from each end),
`per-document` (two chunks of every document, filled up to a multiple of 2 P), `per-document-uneven` (the same without
filling up, chunks that differ by a token), `whole` (documents as they are, longest
first, to the rank with the fewest tokens), `equal` (the same, cut until ranks have equal tokens). reach: which tokens
travel: `all`, `not-last` (those of shards that are not the last of their document, filled up to the largest rank's),
`needed` (those that a later token of the document elsewhere reads). degree: `fixed`, or as many ranks as a length needs
under a limit: `doubling`, `any`; `count`, as many groups as documents. nodes: what is dealt is dealt to nodes, and
inside one all-to-all deals heads.
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

Dealt = Literal["contiguous", "zigzag", "per-document", "per-document-uneven", "whole", "equal"]
Reach = Literal["all", "not-last", "needed"]
Degree = Literal["fixed", "doubling", "any", "count"]
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
    nodes: bool = False


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
        "NVIDIA/TransformerEngine@d0067d0d (THD)",
    ),
    Packing(
        "wlb-llm", "every document in 2 P chunks that differ by a token; gathered keys and values are kept",
        "per-document-uneven", "all", "stated",
        "Ash-Zheng/WLB-LLM-CP@7e1d5d4 utils.py:23-39, per_doc_cp_attn.py:76-219; which of per-document and per-"
        "sequence it takes, by predicted kernel time, is left out",
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
        "basp", "documents of one length, as many groups of ranks as documents", "zigzag", "all", "derived",
        "arXiv 2609.03151, its equations as collected, not opened", "count",
    ),
    Packing(
        "hsap", "between nodes only what a document needs, heads dealt inside a node", "contiguous", "needed",
        "inferred", "arXiv 2606.30460, words as collected, not opened; its plan of nodes is not known, so neighbours",
        nodes=True,
    ),
    Packing(
        "dynamic-groups", "each document on as many ranks as its length needs, any number", "per-document", "all",
        "inferred", "arXiv 2502.21231 (ByteScale), arXiv 2602.21788 (FCP): abstracts; arXiv 2412.01523 (FlexSP)",
        "any",
    ),
)  # fmt: skip
PACKINGS: Final = {row.name: row for row in _ROWS}
