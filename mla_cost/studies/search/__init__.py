"""Every legal way to train a model on so many devices, priced and ranked: `mla_cost.search`."""

from mla_cost.studies.search.records import Candidate, Miss, Ruled
from mla_cost.studies.search.result import Found, of, search

__all__ = ["Candidate", "Found", "Miss", "Ruled", "of", "search"]
