"""A transformer layer with a dense SwiGLU MLP (docs/decisions/0007)."""

from mla_cost.declared.layers.pieces import MIXER, NORMS
from mla_cost.language.program import Layer

LAYER = Layer(
    name="dense",
    title="norm, attention, residual; norm, dense SwiGLU MLP, residual",
    titles={**NORMS, "W_fc1": "mlp.gate_up", "W_fc2": "mlp.down"},
    text="""
layer(x):
    hidden = norm x, g_attention[h]
    exchange region hidden
    attended = mixer hidden
    exchange region_end attended
    residual = add x, attended
    hidden = norm residual, g_mlp[h]
    exchange region hidden
    mlp_out = mlp hidden
    exchange region_end mlp_out
    y = add residual, mlp_out
    return y

"""
    + MIXER
    + """
mlp(hidden):
    gate_up = linear hidden, W_fc1[f+f h]
    gate[f], up[f] = split gate_up
    activated = silu gate
    product = times activated, up
    drop activated
    out = linear product, W_fc2[h f]
    return out
""",
)
