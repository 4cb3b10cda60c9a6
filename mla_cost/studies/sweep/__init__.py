"""Grids of plans priced at once: `mla_cost.sweep`."""

from mla_cost.studies.sweep.result import Sweep, of, sweep

__all__ = ["Sweep", "of", "sweep"]
