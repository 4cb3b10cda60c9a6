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


def offered() -> tuple[str, ...]:
    """The schemes that searches and levers try where nobody names one."""
    return tuple(name for name, scheme in SCHEMES.items() if scheme.offered)
