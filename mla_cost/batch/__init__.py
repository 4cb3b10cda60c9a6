"""The model scope at many points at once: layers as polynomials over arrays, stages as sums and maxima of layers."""

from mla_cost.batch.composed import Composed
from mla_cost.batch.pricer import price

__all__ = ["Composed", "price"]
