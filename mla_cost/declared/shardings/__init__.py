"""What data-parallel ranks share, one declaration per file: a new file here is found by itself."""

from importlib import import_module
from pathlib import Path

from mla_cost.declared.states import Sharding

_FILES = sorted(path.stem for path in Path(__file__).parent.glob("*.py") if path.stem not in {"__init__", "deepspeed"})
SHARDINGS: dict[str, Sharding] = {
    row.name: row for row in (import_module(f"mla_cost.declared.shardings.{name}").SHARDING for name in _FILES)
}
