"""A transformer layer with a mixture of experts (docs/decisions/0008)."""

from mla_cost.declared.layers.pieces import MIXER, NORMS
from mla_cost.language.program import Layer

LAYER = Layer(
    name="moe",
    title="norm, attention, residual; norm, routed and shared experts, residual",
    experts=True,
    titles={
        **NORMS,
        "W_router": "moe.router",
        "W_fc1": "moe.experts.gate_up",
        "W_fc2": "moe.experts.down",
        "W_shared_fc1": "moe.shared.gate_up",
        "W_shared_fc2": "moe.shared.down",
    },
    text="""
layer(x):
    hidden = norm x, g_attention[h]
    exchange region hidden
    attended = mixer hidden
    exchange region_end attended
    residual = add x, attended
    hidden = norm residual, g_mlp[h]
    routed = experts hidden
    if m
        shared_in = same hidden
        exchange region shared_in
        shared_out = shared_experts shared_in
        drop shared_in
        exchange region_end shared_out
        routed = add routed, shared_out
    y = add residual, routed
    return y
"""
    + MIXER
    + """
experts(hidden):
    logits = linear hidden, W_router[e h]
    weights, chosen = router logits
    rows = permute_rows hidden, chosen
    exchange dispatch rows
    exchange expert_region rows
    exchange by_expert rows
    gate_up = grouped_linear rows, W_fc1[c g+g h]
    gate[g], up[g] = split gate_up
    activated = silu gate
    product = times activated, up
    drop activated
    out = grouped_linear product, W_fc2[c h g]
    drop product
    exchange by_source out
    exchange expert_region_end out
    exchange combine out
    mixed = unpermute_rows out, weights, chosen
    return mixed

shared_experts(hidden):
    gate_up = linear hidden, W_shared_fc1[m+m h]
    gate[m], up[m] = split gate_up
    activated = silu gate
    product = times activated, up
    drop activated
    out = linear product, W_shared_fc2[h m]
    return out
""",
)
