"""The end of a model that predicts one token further ahead through an expert layer (docs/decisions/0011)."""

from mla_cost.declared.layers import moe, mtp_input
from mla_cost.declared.layers.head import AHEAD
from mla_cost.declared.layers.head import LAYER as HEAD
from mla_cost.language.program import Layer

LAYER = Layer(
    name="mtp_moe",
    title="multi-token prediction through an expert layer, and both losses",
    text=moe.LAYER.text + mtp_input.TEXT + AHEAD,
    whole="ends",
    role="ends",
    experts=True,
    shares=(*mtp_input.LAYER.shares, *HEAD.shares),
    titles={**moe.LAYER.titles, **mtp_input.LAYER.titles, **HEAD.titles},
)
