"""Eager attention by einsum, in the order most training code writes it."""

from mla_cost.language.program import Kernel

TEXT = """
attend(q, key, value):
    raw_scores = einsum "{scores}" "attention" q, key
    scores = scale raw_scores
    if names == rebound
        drop raw_scores
    if mask == tensor
        masked_scores = mask scores
        if names == rebound
            drop scores
        probabilities = softmax masked_scores
    else
        probabilities = softmax scores
    o = einsum "{output}" "attention" probabilities, value
    out = permute "{order}" o
    drop o
    return out
"""
PER_HEAD = {
    "sbnd": {"scores": "sbnd,tbnd->bnst", "output": "bnst,tbnd->sbnd", "order": "sbnd"},
    "bsht": {"scores": "sbnd,tbnd->bsnt", "output": "bsnt,tbnd->bsnd", "order": "bsnd"},
    "bnsd": {"scores": "sbnd,tbnd->bnst", "output": "bnst,tbnd->bnsd", "order": "bnsd"},
}


def shared(letters: dict[str, dict[str, str]]) -> dict[str, dict[str, str]]:
    """The same letters for one key that all heads share."""
    return {
        layout: {name: text.replace("tbnd", "tbd") for name, text in row.items()} for layout, row in letters.items()
    }


KERNEL = Kernel(
    name="eager",
    title="einsum, scale, softmax, einsum; scores and probabilities in memory",
    text=TEXT,
    shared_text=TEXT,
    fused=False,
    limits=(),
    source="docs/decisions/0001",
    layouts=PER_HEAD,
    shared_layouts=shared(PER_HEAD),
)
