"""Will it fit, what does it move, and what should I change? Costs of training Multi-head Latent Attention.

`mla_cost.plan(...)` prices a block and gives a verdict; `mla_cost.formula(...)` gives the symbolic cost.
"""

from mla_cost.api import formula, plan
from mla_cost.errors import InputError

__all__ = ["InputError", "formula", "plan"]
