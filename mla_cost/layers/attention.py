"""The bare attention block: what the attention scope prices."""

from mla_cost.program import Layer

LAYER = Layer(
    name="attention",
    title="the attention block alone",
    text="""
layer(x):
    y = forward x
    return y
""",
)
