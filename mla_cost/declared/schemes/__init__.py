"""What crosses ranks, one declaration per file: a new file here is found by itself."""

from importlib import import_module
from pathlib import Path

from mla_cost.language.program import Scheme

_FILES = sorted(
    path.stem for path in Path(__file__).parent.glob("*.py") if path.stem not in {"__init__", "requirements"}
)
SCHEMES: dict[str, Scheme] = {
    scheme.name: scheme for scheme in (import_module(f"mla_cost.declared.schemes.{name}").SCHEME for name in _FILES)
}
