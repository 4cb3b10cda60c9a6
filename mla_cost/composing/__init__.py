"""The model scope at many points at once: layers as polynomials over arrays, stages as sums and maxima of layers."""

from mla_cost.composing.composed import Composed
from mla_cost.composing.pricer import price

__all__ = ["Composed", "price"]
