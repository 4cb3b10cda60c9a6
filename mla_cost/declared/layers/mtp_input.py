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
    role="ahead",
    shares=("W_embedding",),
    titles={
        "W_embedding": "embedding",
        "g_tokens": "mtp.embedding_norm",
        "g_hidden": "mtp.hidden_norm",
        "W_joined": "mtp.eh_proj",
        "g_ahead": "mtp.final_norm",
        "g_final": "mtp.final_norm",
    },
    recomputed=False,
    text=TEXT,
    whole="mtp_input",
)
