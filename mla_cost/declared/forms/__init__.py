"""The maths of the block, one declaration per file: a new file here is found by itself, after those of the defaults."""

from importlib import import_module
from pathlib import Path

from mla_cost.declared import defaults
from mla_cost.language.program import Form, Pair

_FOUND = sorted(path.stem for path in Path(__file__).parent.glob("*.py") if path.stem not in {"__init__", "pieces"})
_FILES = sorted(_FOUND, key=lambda name: defaults.FORMS.index(name) if name in defaults.FORMS else len(_FOUND))
FORMS: dict[str, Form | Pair] = {
    form.name: form for form in (import_module(f"mla_cost.declared.forms.{name}").FORM for name in _FILES)
}
ALIASES: dict[str, str] = {form.known_as.split()[0]: form.name for form in FORMS.values() if form.known_as}
