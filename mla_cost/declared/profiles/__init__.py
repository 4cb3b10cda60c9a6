"""Whose implementation is priced, one declaration per file: a new file here is found by itself."""

from importlib import import_module
from pathlib import Path

from mla_cost.language.program import Profile

_FILES = sorted(path.stem for path in Path(__file__).parent.glob("*.py") if path.stem != "__init__")
PROFILES: dict[str, Profile] = {
    profile.name: profile
    for profile in (import_module(f"mla_cost.declared.profiles.{name}").PROFILE for name in _FILES)
}
