"""What a multi-token-prediction module does before its own layer: two norms, joined, projected back to one width."""

from mla_cost.language.program import Layer

TEXT = """
mtp_input(x):
    embedded = embedding W_embedding[V h]
    exchange region_end embedded
    hidden = norm x, g_hidden[h]
    tokens = norm embedded, g_tokens[h]
    joined = concat tokens, hidden
    y = linear joined, W_joined[h h+h]
    return y
"""

LAYER = Layer(
    name="mtp_input",
    title="embedding of the next tokens, two norms, joined and projected",
    recomputed=False,
    text=TEXT,
    whole="mtp_input",
)
