"""The longest sequence that fits, the least sp and the fewest devices: `mla_cost.longest`."""

from mla_cost.studies.longest.result import Fit, Fits, longest, of

__all__ = ["Fit", "Fits", "longest", "of"]
