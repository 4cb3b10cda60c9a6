"""Will it fit, what does it move, and what should I change? Costs of training Multi-head Latent Attention.

`mla_cost.plan(...)` prices a rank of a model, or a block, and gives a verdict; `mla_cost.levers(...)` says what a
change would do; `mla_cost.longest(...)` finds what fits; `mla_cost.sweep(...)` prices grids; `mla_cost.search(...)`
ranks every legal plan for so many devices; `mla_cost.plan_file(...)` reads a plan for any of them;
`mla_cost.formula(...)` gives the symbolic cost of a block.
"""

from __future__ import annotations

# Nothing is imported until it is asked for, typing neither: Ctrl-C finds the command's handler in place the sooner.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from mla_cost.api import formula as formula
    from mla_cost.api import levers as levers
    from mla_cost.api import plan as plan
    from mla_cost.errors import InputError as InputError
    from mla_cost.inputs.plan_files import plan_file as plan_file
    from mla_cost.studies.longest import longest as longest
    from mla_cost.studies.search import search as search
    from mla_cost.studies.sweep import sweep as sweep

_HOMES = {
    "InputError": "mla_cost.errors",
    "formula": "mla_cost.api",
    "levers": "mla_cost.api",
    "longest": "mla_cost.studies.longest",
    "plan": "mla_cost.api",
    "plan_file": "mla_cost.inputs.plan_files",
    "search": "mla_cost.studies.search",
    "sweep": "mla_cost.studies.sweep",
}

__all__ = ["InputError", "formula", "levers", "longest", "plan", "plan_file", "search", "sweep"]


def __getattr__(name: str) -> Any:
    """Import what is asked for when it is: the command line's help needs none of it."""
    if name not in _HOMES:
        raise AttributeError(f"module 'mla_cost' has no attribute {name!r}")
    from importlib import import_module

    found = getattr(import_module(_HOMES[name]), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
