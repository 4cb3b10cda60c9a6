"""A transformer layer with a mixture of experts (docs/decisions/0008; its router and rows op by op: page 0021)."""

from mla_cost.declared.layers.pieces import MIXER, NORMS
from mla_cost.language.program import Layer

# from rows of every position to what their experts made of them
_ROUTED = """
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
"""
_SHARED = """
{indent}shared_in = same hidden
{indent}exchange region shared_in
{indent}shared_out = shared_experts shared_in
{indent}drop shared_in
{indent}exchange region_end shared_out
"""

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
    if moe_style == torchtitan
        out, positions = experts hidden
        if m
"""
    + _SHARED.format(indent=" " * 12)
    + """
        else
            shared_out = zeros hidden
        out = add_rows "scatter" shared_out, out, positions
        y = add residual, out
        return y
    routed = experts hidden
    if m
"""
    + _SHARED.format(indent=" " * 8)
    + """
        routed = add routed, shared_out
    y = add residual, routed
    return y
"""
    + MIXER
    + """
experts(hidden):
    if moe_style == torchtitan
        logits = linear hidden, W_router[e h]
        weights, chosen = router "torchtitan" logits
        rows, row_weights, positions = expert_rows "gather" hidden, weights, chosen
        rows = weigh_rows "torchtitan" rows, row_weights
        out = routed rows
        return out, positions
    if moe_style == transformers
        weights, chosen = wide_router hidden
        mixed = zeros "fp32" hidden
        rows, row_weights, positions = expert_rows "index" hidden, weights, chosen
        out = routed rows
        mixed = weighed_sum mixed, out, row_weights, positions
        mixed = to_activation mixed
        return mixed
    logits = linear hidden, W_router[e h]
    weights, chosen = router logits
    rows = permute_rows hidden, chosen
"""
    + _ROUTED
    + """
    mixed = unpermute_rows out, weights, chosen
    return mixed

wide_router(hidden):
    wide = to_fp32 hidden
    wide_weight = to_fp32 W_router[e h]
    logits = linear wide, wide_weight
    drop wide, wide_weight
    weights, chosen = router "transformers" logits
    return weights, chosen

weighed_sum(total, out, row_weights, positions):
    product = weigh_rows "transformers" out, row_weights
    total = add_rows "index" total, product, positions
    return total

routed(rows):
"""
    + _ROUTED
    + """
    return out

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
