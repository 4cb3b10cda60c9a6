"""What updates weights, one declaration per file: a new file here is found by itself."""

from importlib import import_module
from pathlib import Path

from mla_cost.declared.states import Optimizer

_FILES = sorted(path.stem for path in Path(__file__).parent.glob("*.py") if path.stem != "__init__")
OPTIMIZERS: dict[str, Optimizer] = {
    row.name: row for row in (import_module(f"mla_cost.declared.optimizers.{name}").OPTIMIZER for name in _FILES)
}
