"""The maths of the block, one declaration per file."""

from mla_cost.declared.forms import absorbed, explicit, laga
from mla_cost.language.program import Form, Pair

FORMS: dict[str, Form | Pair] = {module.FORM.name: module.FORM for module in (explicit, absorbed, laga)}
ALIASES: dict[str, str] = {form.known_as.split()[0]: form.name for form in FORMS.values() if form.known_as}
