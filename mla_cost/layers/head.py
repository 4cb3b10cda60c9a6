"""The final norm, the output head and the loss (docs/decisions/0007 and 0012)."""

from mla_cost.program import Layer

LAYER = Layer(
    name="head",
    title="final norm, output head and cross-entropy",
    recomputed=False,
    text="""
layer(x):
    hidden = norm x, g_final[h]
    exchange region hidden
    if cross_entropy == chunked
        loss = chunked_loss hidden, W_head[V h]
        return loss
    logits = linear hidden, W_head[V h]
    if cross_entropy == fused
        loss = cross_entropy_overwriting logits
        return loss
    loss = cross_entropy logits
    return loss
""",
)
