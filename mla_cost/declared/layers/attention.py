"""The bare attention block: what the attention scope prices."""

from mla_cost.language.program import Layer

LAYER = Layer(
    name="attention",
    title="the attention block alone",
    role="block",
    text="""
layer(x):
    if idle_mlp == held
        gate_up = parameter W_fc1[f+f h]
        down = parameter W_fc2[h f]
    y = forward x
    return y
""",
)
