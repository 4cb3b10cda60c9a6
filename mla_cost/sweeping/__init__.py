"""Grids of plans priced at once: `mla_cost.sweep`."""

from mla_cost.sweeping.result import Sweep, of, sweep

__all__ = ["Sweep", "of", "sweep"]
