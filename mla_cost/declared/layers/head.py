"""The final norm, the output head and the loss (docs/decisions/0007 and 0012); with a loss further ahead, page 0011."""

from mla_cost.language.program import Layer

_LOSS = """
{piece}(x):
    hidden = norm x, {scale}[h]
    exchange region hidden
    if cross_entropy == chunked
        loss = chunked_loss hidden, W_head[V h]
        return loss
    logits = linear hidden, W_head[V h]
    if cross_entropy == fused
        loss = cross_entropy "overwriting" logits
        return loss
    if cross_entropy == in-place
        loss = cross_entropy logits
        return loss
    if cross_entropy == no-upcast
        loss = cross_entropy "log-softmax" logits
        return loss
    wide = to_fp32 logits
    loss = cross_entropy "log-softmax" wide
    return loss
"""
# both losses share the head's weight and go back at once
AHEAD = (
    """
ends(x):
    ahead = mtp_input x
    ahead = layer ahead
    loss_ahead = loss_ahead ahead
    loss_next = loss_next x
    loss = total_loss loss_ahead, loss_next
    return loss
"""
    + _LOSS.format(piece="loss_ahead", scale="g_ahead")
    + _LOSS.format(piece="loss_next", scale="g_final")
)

LAYER = Layer(
    name="head",
    title="final norm, output head and cross-entropy",
    role="head",
    shares=("W_head",),
    titles={"W_head": "head", "g_final": "final_norm"},
    recomputed=False,
    text=_LOSS.format(piece="layer", scale="g_final"),
)
