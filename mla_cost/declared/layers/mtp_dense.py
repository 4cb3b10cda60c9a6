"""The end of a model that predicts one token further ahead through a dense layer (docs/decisions/0011)."""

from mla_cost.declared.layers import dense, mtp_input
from mla_cost.declared.layers.head import AHEAD
from mla_cost.declared.layers.head import LAYER as HEAD
from mla_cost.language.program import Layer

LAYER = Layer(
    name="mtp_dense",
    title="multi-token prediction through a dense layer, and both losses",
    text=dense.LAYER.text + mtp_input.TEXT + AHEAD,
    whole="ends",
    role="ends",
    shares=(*mtp_input.LAYER.shares, *HEAD.shares),
    titles={**dense.LAYER.titles, **mtp_input.LAYER.titles, **HEAD.titles},
)
