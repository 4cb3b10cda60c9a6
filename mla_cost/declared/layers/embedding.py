"""The embedding of a vocabulary that is divided over tensor-parallel ranks (docs/decisions/0007)."""

from mla_cost.language.program import Layer

LAYER = Layer(
    name="embedding",
    title="rows of the embedding",
    role="embedding",
    shares=("W_embedding",),
    titles={"W_embedding": "embedding"},
    takes_input=False,
    recomputed=False,
    text="""
layer():
    y = embedding W_embedding[V h]
    exchange region_end y
    return y
""",
)
