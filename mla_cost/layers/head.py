"""The final norm, the output head and the loss (docs/decisions/0007)."""

from mla_cost.program import Layer

LAYER = Layer(
    name="head",
    title="final norm, output head and cross-entropy",
    recomputed=False,
    text="""
layer(x):
    hidden = norm x, g_final[h]
    exchange region hidden
    logits = linear hidden, W_head[V h]
    loss = cross_entropy logits
    return loss
""",
)
